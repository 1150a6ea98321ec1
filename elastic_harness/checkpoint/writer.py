"""Writes checkpoints from a node's memory in the background, while the workers train on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

from elastic_harness.checkpoint.files import CheckpointFolder, Kind, name_of
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.errors import CheckpointError, FencedError

log = logging.getLogger(__name__)

# How long it may take to see that there is no time left.
_LOOK_SECONDS = 0.1


class Capture(NamedTuple):
    """A state in the node's memory, to be written.

    Args:
        path: the file.
        step: optimizer steps in it.
        epoch: epochs finished.
        kinds: what it is kept for.
        best: names of the checkpoints to keep for their objective; None keeps all there are.
        last: whether no other one follows.
    """

    path: str
    step: int
    epoch: int
    kinds: tuple[Kind, ...]
    best: tuple[str, ...] | None
    last: bool


class Written(NamedTuple):
    """A checkpoint that is safe under its final name."""

    path: str
    step: int


Outcome = Written | CheckpointError


class BackgroundWriter:
    """One thread of the agent, so that a copy that waits to be written survives the worker that made it.

    One write is under way at a time, and one state waits for it; a later one takes its place, unless it is still one of
    the best.

    Args:
        folder: where the checkpoints go.
        keep_last: how many of the newest to keep.
        fingerprint: what defines the run's result.
        may_write: whether this node may write.

    Attributes:
        reader: becomes readable when a write has ended.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        keep_last: int,
        fingerprint: Mapping[str, Any],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.reader, self._ended = Pipe(duplex=False)
        self._folder = folder
        self._keep_last = keep_last
        self._fingerprint = fingerprint
        self._may_write = may_write
        self._waiting: deque[tuple[Capture, int]] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._changed = threading.Condition()
        self._busy = self._is_closed = False
        threading.Thread(target=self._run, name="checkpoint-writer", daemon=True).start()

    def submit(self, capture: Capture, generation: int) -> None:
        """Have a state written.

        Args:
            capture: the state.
            generation: the worker group that it is of.
        """

        def stays(waiting: Capture) -> bool:
            return "best" in waiting.kinds and (capture.best is None or name_of("best", waiting.step) in capture.best)

        with self._changed:
            self._waiting = deque([*(each for each in self._waiting if stays(each[0])), (capture, generation)])
            self._changed.notify_all()

    def ended(self) -> list[Outcome]:
        """What has been written, or could not be and may be next time, since the last call.

        Raises:
            CheckpointError: a checkpoint could not be written, and the next one cannot be, either.
        """
        outcomes: list[Outcome] = []
        while self.reader.poll():
            outcome = self._outcomes[0]
            permanent = outcome if isinstance(outcome, CheckpointError) and outcome.permanent else None
            if permanent is not None and outcomes:
                break  # the next call raises it; what was written counts
            self.reader.recv_bytes()
            self._outcomes.popleft()
            if permanent is not None:
                raise permanent
            outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """End the thread, once it has written what it is at; what waits is not written."""
        with self._changed:
            self._waiting.clear()
            self._is_closed = True
            self._changed.notify_all()

    def finish(self, seconds_left: Callable[[], float]) -> bool:
        """Wait until all is written; whether that is so.

        Args:
            seconds_left: how long this may take, asked again and again, since a stop may come meanwhile.
        """
        with self._changed:
            while (self._busy or self._waiting) and (left := seconds_left()) > 0:
                self._changed.wait(min(left, _LOOK_SECONDS))
            return not self._busy and not self._waiting

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    break
                capture, generation = self._waiting.popleft()
                self._busy = True
            try:
                self._write(capture, generation)
            except FencedError as error:
                log.warning("%s", error)
            except CheckpointError as error:
                self._end(error)
            except Exception as error:  # nobody else would hear of it, and whoever waits would wait for ever
                reason = f"the state after step {capture.step} was not written ({type(error).__name__}: {error})"
                self._end(CheckpointError(f"{reason}; the next one is tried again.", permanent=False))
        self.reader.close()
        self._ended.close()

    def _end(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._ended.send_bytes(b"")

    def _write(self, capture: Capture, generation: int) -> None:
        folder = self._folder
        facts = Facts(capture.step, capture.epoch, generation, self._fingerprint)
        for kind in capture.kinds:
            written = folder.write(Path(capture.path), kind, facts, self._may_write)
            self._end(Written(written.path, capture.step))
        folder.prune("step", folder.names("step")[-self._keep_last :])
        if capture.best is not None:
            folder.prune("best", capture.best)
        if not capture.last:
            folder.check_space(Path(capture.path).stat().st_size)
