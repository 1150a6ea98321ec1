"""Signals that ask the run to stop: noted by a handler, answered by the agent when it looks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, NoReturn

from elastic_harness.errors import Stopped

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """While it lasts, a stop signal raises ``Stopped`` where the program is; for the time before and after a run."""

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    caught = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


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


class StopSignals:
    """While entered, a stop signal is only noted; what was ignored before, such as SIGHUP under nohup, stays ignored.

    Attributes:
        received: number of the signal, None as long as there was none.
        reader: becomes readable when a signal arrives, to wake whoever waits.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.reader, self._writer = Pipe(duplex=False)
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
        if self.received is None and (number in self._before or not self._before):
            self.received = number
            self._writer.send_bytes(b"")
