"""Rescue: an interrupted worker hands over the state of its last finished step.

The agent asks, a thread of the worker answers, whatever the training thread is doing: computing, validating, raising,
or waiting in a collective for a peer that will never come, which runs no signal handler and cannot be woken.

    agent                                   worker's rescue thread
    Hold(step)      to every worker   ->    waits for that step, keeps the training thread from updating
                                      <-    Held(step)
    HandOver(step)  to the farthest   ->    writes its state; if it cannot, to the next one
                                      <-    HandedOver(path)
    ends them all                     ->    Dismiss, if all have finished
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_harness.checkpoint.boundary import Boundary
from elastic_harness.checkpoint.node_memory import write_state
from elastic_harness.checkpoint.plain_state import converted
from elastic_harness.messages import Dismiss, HandedOver, HandOver, Held, Hold, Message, Order, Signalled
from elastic_harness.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from elastic_harness.local_worker import LocalWorker

log = logging.getLogger(__name__)

# How long a worker that holds a state waits for one that may hold a newer one, but may as well be stopped.
_OTHERS_SECONDS = 1.0


class RescueThread(threading.Thread):
    """Answers the agent of a worker, and tells it of signals that the worker gets.

    Args:
        connection: to the agent.
        send: sends a message to it.

    Attributes:
        boundary: what there is to hand over; None before the training and without ``checkpoint.rescue``.
        dismissed: set when nothing will be asked for any more.
    """

    def __init__(self, connection: Connection, send: Callable[[Message], None]) -> None:
        super().__init__(name="rescue", daemon=True)
        self.boundary: Boundary | None = None
        self.dismissed = threading.Event()
        self._connection = connection
        self._send = send
        self._wakened, waker = socket.socketpair()
        for end in (self._wakened, waker):
            end.setblocking(False)
        self._waker = waker
        # Python's own handlers would wait for the training thread. This is done by the C handler at once.
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        with self._wakened, self._waker, contextlib.suppress(EOFError):  # when the agent is gone
            self._listen()

    def _listen(self) -> None:
        while True:
            for ready in wait([self._connection, self._wakened]):
                if ready is self._wakened:
                    for number in set(self._wakened.recv(64)).intersection(STOP_SIGNALS):
                        self._send(Signalled(number))
                else:
                    self._answer(self._connection.recv())

    def _answer(self, order: Order) -> None:
        boundary = self.boundary
        match order:
            case Dismiss():
                self.dismissed.set()
            case Hold(step, seconds):
                self._send(Held(boundary.hold(step, seconds) if boundary else None))
            case HandOver(step, places):
                assert boundary is not None
                self._send(_hand_over(boundary, step, places))


def _hand_over(boundary: Boundary, step: int, places: Sequence[str]) -> HandedOver:
    try:
        with boundary.readable():
            return HandedOver(str(write_state(converted(boundary.state()), step, list(map(Path, places)))))
    except Exception as error:  # the agent asks another worker, and says why
        return HandedOver(None, f"{type(error).__name__}: {error}")


def rescue(
    workers: Sequence[LocalWorker],
    read: Callable[[LocalWorker], None],
    places: Sequence[Path],
    *,
    step: int,
    seconds: float,
) -> Path | None:
    """Have the most advanced of a node's workers hand its state over.

    Args:
        workers: of this node; those that are gone or do not answer are left out.
        read: takes in what a worker has sent.
        places: folders for it, see ``write_state``.
        step: the step to be finished first; 0 is none.
        seconds: how long all of it may take.

    Returns:
        The file; None if nobody had a state.
    """
    deadline = time.monotonic() + seconds
    for each in workers:
        each.wake()
        each.order(Hold(step, seconds / 2))
    until = deadline
    while (asked := [each for each in workers if each.may_hold]) and time.monotonic() < until:
        _hear(asked, read)
        if until == deadline and any(each.held_step is not None for each in workers):
            until = min(deadline, time.monotonic() + _OTHERS_SECONDS)
    holding = [(each.held_step, each) for each in workers if each.held_step is not None]
    for held, worker in sorted(holding, key=lambda pair: -pair[0]):
        worker.order(HandOver(held, tuple(map(str, places))))
        while worker.handed_over is None and worker.process.is_alive() and time.monotonic() < deadline:
            _hear([worker], read)
        if worker.handed_over is not None and worker.handed_over.path is not None:
            return Path(worker.handed_over.path)
        log.warning("rank %d did not hand its state over: %s", worker.assignment.rank, worker.handed_over)
    return None


def _hear(workers: Sequence[LocalWorker], read: Callable[[LocalWorker], None]) -> None:
    wait([handle for each in workers for handle in (each.connection, each.process.sentinel)], timeout=0.05)
    for each in workers:
        read(each)
