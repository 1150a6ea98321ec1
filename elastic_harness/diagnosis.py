"""What went wrong in a worker group: which worker's end was the cause, and what ended it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from elastic_harness import zygote
from elastic_harness.errors import ConfigError
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import EXIT_MISSING_MAIN_GUARD
from elastic_harness.restart import Failure

# How long a failure that looks like the consequence of another one waits for that other one to show.
_CULPRIT_SECONDS = 2.0

_MISSING_MAIN_GUARD = (
    'The script calls fit() outside of `if __name__ == "__main__":`. Every worker imports the script, so that line '
    'is needed: put what builds the Trainer and calls fit() below `if __name__ == "__main__":`.'
)


def first_failure(
    workers: Sequence[LocalWorker], read: Callable[[LocalWorker], None], *, step: int, made_progress: bool
) -> Failure:
    """The failure that the others of a generation only follow from.

    Args:
        workers: of this node; at least one has ended.
        read: takes in what a worker has sent.
        step: optimizer steps finished.
        made_progress: whether any was finished since the start.

    Raises:
        ConfigError: a worker saw that the input is bad.
    """
    deadline = time.monotonic() + _CULPRIT_SECONDS
    while True:
        ended = [each for each in workers if each.raised or not each.process.is_alive()]
        running = [each for each in workers if each not in ended]
        for each in workers:
            read(each)
        failures = [
            _failure_of(each, step=step, made_progress=made_progress, log=each.assignment.log_path)
            for each in ended
            if not each.finished
        ]
        causes = [failure for failure, consequence in failures if not consequence]
        if causes:
            return causes[0]
        if not running or time.monotonic() > deadline:
            return replace(failures[0][0], consequence=True)
        wait([handle for each in running for handle in (each.process.sentinel, each.connection)], timeout=0.05)


def _failure_of(source: LocalWorker, **common: Any) -> tuple[Failure, bool]:
    """What ended a worker, and whether that only came of another one's end."""
    rank, raised = source.assignment.rank, source.raised
    if raised is not None and raised.refused:
        raise ConfigError(raised.refused)
    if raised is not None and raised.exit_code is None:
        failure = Failure(
            rank, "exception", raised.name, raised.message, raised.place,
            permanent=raised.permanent, traceback=raised.traceback, **common,
        )  # fmt: skip
        return failure, raised.consequence
    code = raised.exit_code if raised is not None else source.process.exitcode
    assert code is not None
    if code == EXIT_MISSING_MAIN_GUARD and not source.progress.started:
        raise ConfigError(_MISSING_MAIN_GUARD)
    if code == zygote.EXIT_CODE_OF_ORPHANS and not zygote.is_alive():
        return Failure(None, "zygote", "", **common), False
    if code < 0:
        return Failure(rank, "signal", _signal_name(-code), exit_code=code, **common), False
    # A worker that never got as far as its first message ended in the import of the user's script, before its
    # output went to its log: it will do so again.
    return Failure(rank, "exit", "", exit_code=code, permanent=not source.progress.started, **common), False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
