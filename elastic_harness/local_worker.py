"""The agent's handle on one worker process of its node."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import psutil

from elastic_harness import worker, zygote
from elastic_harness.messages import (
    Assignment,
    Dismiss,
    Finished,
    HandedOver,
    Held,
    Message,
    Order,
    Progress,
    Raised,
    as_message,
)
from elastic_harness.process_state import ProcessState

# How long a worker that has finished may take to leave.
_FAREWELL_SECONDS = 5.0


@dataclass
class LocalWorker:
    """A worker process of this node and what is known of it.

    Args:
        assignment: its place in the generation.
        process: its process, a child of the zygote.
        connection: brings its messages.
        progress: the record that it keeps up to date.
        finished: its message that it did its part, once that is read.
        raised: its message that an exception ended it, once that is read.
        held: its answer to ``Hold``, once that is read.
        handed_over: its answer to ``HandOver``, once that is read.
    """

    assignment: Assignment
    process: ForkServerProcess
    connection: Connection
    progress: Progress
    finished: Finished | None = None
    raised: Raised | None = None
    held: Held | None = None
    handed_over: HandedOver | None = None

    @classmethod
    def start(
        cls,
        assignment: Assignment,
        payload: ctypes.Array[ctypes.c_char],
        state: ProcessState,
        modules: Sequence[str],
    ) -> LocalWorker:
        """Fork the worker from the zygote; the arguments are those of ``worker.main`` and ``zygote.fork``.

        Raises:
            ZygoteDiedError: the zygote died meanwhile.
        """
        context = zygote.context()
        progress = context.RawValue(Progress)
        progress.loss = math.nan  # none yet
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker.main,
            name=f"worker-{assignment.rank}",
            args=(assignment, payload, progress, theirs, state),
        )
        zygote.fork(process, modules)
        theirs.close()
        return cls(assignment, process, ours, progress)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def messages(self) -> Iterator[Message]:
        """What the worker has sent and nobody has read."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while self.connection.poll():
                yield as_message(self.connection.recv())

    @property
    def may_hold(self) -> bool:
        """Whether the worker has not answered ``Hold`` and still may."""
        return self.held is None and self.process.is_alive()

    @property
    def held_step(self) -> int | None:
        """The number of steps in the state that the worker holds; None if there is none, or it is not known."""
        return self.held.step if self.held is not None else None

    def order(self, order: Order) -> None:
        """Send the worker an order; one that is gone does not get it."""
        with contextlib.suppress(OSError):
            self.connection.send(order)

    def wake(self) -> None:
        """Let a stopped worker go on, which could not answer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the worker and its loader processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._may_live():
            # It does not lead its process group in its first milliseconds.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the killed worker is gone."""
        # Not with join(), which returns at once when the zygote is gone.
        with contextlib.suppress(psutil.NoSuchProcess):
            while self._may_live() and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)

    def _may_live(self) -> bool:
        return self.process.exitcode in (None, zygote.EXIT_CODE_OF_ORPHANS)


def dismiss(workers: Sequence[LocalWorker]) -> None:
    """Let workers go that have finished: nobody will want their state any more."""
    for each in workers:
        each.order(Dismiss())
    for each in workers:
        each.process.join(_FAREWELL_SECONDS)


def end(workers: Sequence[LocalWorker]) -> None:
    """Kill workers, and wait until they are gone."""
    for each in workers:
        each.kill()
    for each in workers:
        each.wait()
        each.connection.close()
