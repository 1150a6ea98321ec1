"""Signals and notices that ask the run to stop: noted when they come, answered by the agent when it looks."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, NamedTuple

from elastic_harness.errors import Stopped

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# How long a process with torch takes to end once its work is done: 1 to 2 s, and more on a busy machine.
_LEAVING_SECONDS = 5.0


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """While it lasts, a stop signal raises ``Stopped`` where the program is, unless signals are on ``hold``."""

    def stop(number: int, _: object) -> None:
        if not _Held.on:
            raise Stopped(number)
        _Held.number = _Held.number or number

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    caught = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


class _Held:
    """Whether stop signals are only noted, and the first one that was."""

    on = False
    number: int | None = None


def hold() -> None:
    """Only note stop signals until ``release``: much of what others wrote is not made to be left at any point, such as
    imports, and C++ that is being initialised."""
    _Held.on = True


def release() -> None:
    """Raise ``Stopped`` again where a stop signal comes, and at once if one has come meanwhile."""
    _Held.on = False
    number, _Held.number = _Held.number, None
    if number is not None:
        raise Stopped(number)


class Shielded:
    """A ``worker_init_fn`` for loader processes that stop signals do not end: they are the agent's to answer.

    Args:
        init: the user's own.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, number: int) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        if self.init is not None:
            self.init(number)


class Stop(NamedTuple):
    """What asked the run to stop.

    Args:
        number: the signal; SIGTERM for a notice.
        notice: who said that this node will go away, and why; None for a signal.
        at: when that was, as ``time.monotonic()`` gives it.
    """

    number: int
    notice: str | None
    at: float


class StopSignals:
    """While entered, a stop signal is only noted; what was ignored before, such as SIGHUP under nohup, stays ignored.

    Args:
        grace_seconds: how long it may take from the signal, or the notice, to the end of this process.

    Attributes:
        reader: becomes readable when a signal or a notice arrives, to wake whoever waits.
    """

    def __init__(self, grace_seconds: float = math.inf) -> None:
        self.grace_seconds = grace_seconds
        self.reader, self._writer = Pipe(duplex=False)
        self._stops: list[Stop] = []
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> StopSignals:
        # Only the main thread may set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda number, _: self.note(number))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def note(self, number: int) -> None:
        """Take a signal, of this process or of a worker, as one that stops the run, unless it is ignored here."""
        if number in self._before or not self._before:
            self._add(Stop(number, None, time.monotonic()))

    def give_notice(self, notice: str) -> None:
        """Take it that this node will go away; from any thread.

        Args:
            notice: who says so, and why.
        """
        self._add(Stop(signal.SIGTERM, notice, time.monotonic()))

    @property
    def first(self) -> Stop | None:
        """What asked the run to stop; None as long as nothing did. What comes later does not count."""
        return self._stops[0] if self._stops else None

    def seconds_left(self) -> float:
        """How long the run may still be at work, so that this process ends in time; without limit until a stop."""
        stop = self.first
        if stop is None:
            return math.inf
        leaving = min(_LEAVING_SECONDS, self.grace_seconds / 3)
        return stop.at + self.grace_seconds - leaving - time.monotonic()

    def _add(self, stop: Stop) -> None:
        # A signal may come in the middle of a notice, and a handler must not wait for a lock; this needs none.
        self._stops.append(stop)
        if self._stops[0] is stop:
            self._writer.send_bytes(b"")
