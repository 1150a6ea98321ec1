"""The states of a run as one node sees them: those in its memory, and the checkpoints that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from elastic_harness.checkpoint import files
from elastic_harness.checkpoint.files import CheckpointFolder, Damaged
from elastic_harness.checkpoint.node_memory import NodeMemory, step_of
from elastic_harness.checkpoint.writer import BackgroundWriter, Capture, Outcome, Written
from elastic_harness.errors import CheckpointError
from elastic_harness.stop_signals import StopSignals


class Reachable(NamedTuple):
    """The most advanced state that a node can reach.

    Args:
        path: what loads it; None if there is none.
        step: the run's own optimizer steps in it; -1 if it is of another run, or there is none.
        damaged: checkpoints that were set aside on the way to it.
    """

    path: str | None
    step: int
    damaged: list[Damaged]


class RunStates:
    """Keeps the newest states of a run, and has checkpoints made of them in the background.

    Args:
        memory: this node's.
        checkpoints: the run's.
        keep_last: how many of the newest checkpoints to keep.
        fingerprint: what defines the run's result.
        resume_from: checkpoint to start from when the run has no state of its own.
        stop: says how long a write may be waited for.
        may_write: whether this node may write for the run.
    """

    def __init__(
        self,
        memory: NodeMemory,
        checkpoints: CheckpointFolder,
        keep_last: int,
        fingerprint: Mapping[str, Any],
        resume_from: str | None,
        stop: StopSignals,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.memory = memory
        self._checkpoints = checkpoints
        self._writer = BackgroundWriter(checkpoints, keep_last, fingerprint, may_write)
        self._resume_from = resume_from
        self._stop = stop

    @property
    def reader(self) -> Connection:
        """Becomes readable when a checkpoint has been written, or could not be."""
        return self._writer.reader

    def reachable(self) -> Reachable:
        """The most advanced state.

        Raises:
            ConfigError: there are checkpoints, and none can be used.
        """
        held = self._newer_than_checkpoints()
        if held is not None:
            return Reachable(str(held), step_of(held), [])
        newest, damaged = self._checkpoints.newest_valid()
        held = self.memory.newest()
        if held is not None and (newest is None or step_of(held) > newest.manifest.step):
            return Reachable(str(held), step_of(held), damaged)
        if newest is None:
            return Reachable(self._resume_from, -1, damaged)
        return Reachable(newest.path, newest.manifest.step, damaged)

    def submit(self, capture: Capture, generation: int) -> None:
        """Have a checkpoint made of a state in the memory."""
        self._writer.submit(capture, generation)

    def written(self) -> list[Outcome]:
        """The checkpoints that have been written, or could not be and may be next time, since the last call.

        Raises:
            CheckpointError: one could not be written, and the next one cannot be, either.
        """
        outcomes = self._writer.ended()
        if steps := [each.step for each in outcomes if isinstance(each, Written)]:
            self.memory.drop_before(max(steps))
        return outcomes

    def finish_writing(self) -> list[Outcome]:
        """Wait for what is being written; otherwise as ``written``.

        Raises:
            CheckpointError: it could not be written, or not before a run that was asked to stop has to end.
        """
        if not self._writer.finish(self._stop.seconds_left):
            raise CheckpointError(
                f"preemption.grace_seconds={self._stop.grace_seconds:g} is too short for what is being written to "
                f"{self._checkpoints.location}: raise it, as far as whoever stops this machine waits, or write to a "
                "faster place.",
                permanent=False,
            )
        return self.written()

    def keep_newest(self, epoch: int, generation: int) -> list[Outcome]:
        """Make a checkpoint of the newest state, if there is none of it yet, and free the memory.

        Args:
            epoch: epochs finished in it.
            generation: the worker group that it is of.

        Raises:
            CheckpointError: it cannot be written, and stays in the memory, as it does when others have taken over.
        """
        written = self.finish_writing()
        newest = self._newer_than_checkpoints()
        if newest is not None:
            self.submit(Capture(str(newest), step_of(newest), epoch, ("step",), None, True), generation)
            written += self.finish_writing()
        errors = [each for each in written if isinstance(each, CheckpointError)]
        if self._newer_than_checkpoints() is None:
            self.memory.drop()
        elif errors:
            raise errors[-1]
        return written

    def close(self) -> None:
        """Let go of threads and files; a state that is not written stays in the memory for a later start."""
        self._writer.close()
        self.memory.release()

    def _newer_than_checkpoints(self) -> Path | None:
        held, names = self.memory.newest(), self._checkpoints.names()
        return held if held is not None and (not names or step_of(held) > files.step_of(names[-1])) else None
