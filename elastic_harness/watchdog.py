"""Notices when workers stand still, and finds the one that the others wait for.

Every worker counts in its shared record whatever moves it on: batches, validations, hooks, saving and loading. Nothing
is asked of it, so that the watch goes on when it is stopped, blocked, or deadlocked.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from elastic_harness.config import WatchdogConfig
from elastic_harness.exception_report import FRAME, innermost
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import STACKS_SIGNAL, Phase
from elastic_harness.restart import Failure

# What is learned: so many times the longest pause that there was, and no less than this.
_PAUSES = 20.0
_SECONDS = 300.0
# What is learned is twice as long after each alarm, so many times.
_DOUBLINGS = 3
# An agent that was stopped itself has not seen what went on.
_BLIND_SECONDS = 15.0
_DUMP_SECONDS = 2.0

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
_MAIN_THREAD = re.compile(r'elastic_harness/worker\.py", line \d+ in main$', re.MULTILINE)
# Where a worker is that waits for its peers: in a collective, or in a backward pass that DDP holds up.
_WAITING = re.compile(r"/torch/(distributed|autograd)/|/elastic_harness/(exact/|checkpoint/(election|boundary)\.py)")

_DOING = {
    Phase.STARTING: "while starting",
    Phase.TRAINING: "in training",
    Phase.EVALUATING: "in a validation",
    Phase.FINISHED: "at the end",
}


class Still(NamedTuple):
    """The workers have not moved.

    Args:
        doing: what they were at, such as ``in training``.
        seconds: for how long.
    """

    doing: str
    seconds: float


class Watchdog:
    """Learns how long the workers of a node pause, and says when they pause too long.

    Args:
        config: the limits.
    """

    def __init__(self, config: WatchdogConfig) -> None:
        self._config = config
        self._alarms = 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Another generation begins; the times are those of ``time.monotonic``."""
        self._beats: tuple[int, ...] = ()
        self._phase = Phase.STARTING
        self._moved = self._looked = now
        self._longest: dict[Phase, float] = {}

    def look_at(self, workers: Sequence[LocalWorker], now: float) -> Still | None:
        """See whether any of these has moved, as ``look`` does."""
        records = [each.progress for each in workers]
        return self.look([each.beats for each in records], Phase(records[0].phase), now) if records else None

    def look(self, beats: Sequence[int], phase: Phase, now: float) -> Still | None:
        """See whether any worker has moved.

        Args:
            beats: what each has counted.
            phase: what the first one is doing.
            now: the time.

        Returns:
            That they stand still, if they have done so for too long.
        """
        blind, self._looked = now - self._looked > _BLIND_SECONDS, now
        pause = now - self._moved
        if tuple(beats) != self._beats or phase != self._phase or blind:
            if not blind and tuple(beats) != self._beats:
                self._longest[self._phase] = max(pause, self._longest.get(self._phase, 0.0))
            self._beats, self._phase, self._moved = tuple(beats), phase, now
            return None
        if not self._config.enabled or pause < self._limit():
            return None
        self._alarms += 1
        return Still(_DOING[phase], pause)

    def _limit(self) -> float:
        if self._phase is Phase.STARTING:
            # The first batch waits for loaders to start and kernels to be chosen.
            return max(self._config.startup_timeout, self._config.hang_timeout or 0.0)
        if self._config.hang_timeout is not None:
            return self._config.hang_timeout
        # The alarms may have been false ones.
        return max(_SECONDS, _PAUSES * self._longest.get(self._phase, 0.0)) * 2.0 ** min(self._alarms, _DOUBLINGS)


def hang(still: Still, workers: Sequence[LocalWorker], **common: Any) -> Failure:
    """The failure of workers that stand still; it is that of the one which the others wait for.

    All of them write their stacks into their logs, which tell what each is at.

    Args:
        still: what was seen.
        workers: of this node.
        common: what is known of the failure whatever it is; fields of ``Failure``.
    """
    stopped = {each.pid for each in workers if _is_stopped(each.pid)}
    # The signal would end one that is still importing the script.
    stacks = _dumped_stacks([each for each in workers if each.pid not in stopped and each.progress.started])
    frames = {each.pid: FRAME.findall(_main_thread(stacks.get(each.pid, ""))) for each in workers}

    def waits(worker: LocalWorker) -> bool:
        """Whether nothing tells it from one that waits for its peers."""
        found = frames[worker.pid]
        return bool(found) and _WAITING.search(found[0][0]) is not None

    culprit = min(workers, key=lambda each: (each.pid not in stopped, waits(each), each.progress.begun))
    place = innermost([f"{file}:{line}" for file, line in reversed(frames[culprit.pid])])
    message = f"for {still.seconds:.0f} s" + (", since it is stopped (SIGSTOP)" if culprit.pid in stopped else "")
    assignment = culprit.assignment
    consequence = waits(culprit) and assignment.num_nodes > 1
    return Failure(
        assignment.rank, "hang", still.doing, message, place,
        log=assignment.log_path, consequence=consequence, **common,
    )  # fmt: skip


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _dumped_stacks(workers: Sequence[LocalWorker]) -> dict[int, str]:
    """What each worker writes into its log when it is asked for its stacks."""
    sizes = {each.pid: len(_log_of(each)) for each in workers}
    for each in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, STACKS_SIGNAL)
    before, deadline = sizes, time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = {each.pid: len(_log_of(each)) for each in workers}
        if now == before and all(now[pid] > sizes[pid] for pid in now):
            break
        before = now
    return {each.pid: _log_of(each)[sizes[each.pid] :].decode(errors="replace") for each in workers}


def _log_of(worker: LocalWorker) -> bytes:
    path = Path(worker.assignment.log_path)
    return path.read_bytes() if path.exists() else b""  # it is made in the first milliseconds of a worker


def _main_thread(stacks: str) -> str:
    """The part of a dump that is about the thread that trains, from where it is up to where the worker begins."""
    found = ((part, _MAIN_THREAD.search(part)) for part in _THREAD.split(stacks))
    return next((part[: match.end()] for part, match in found if match), "")
