"""What went wrong in a worker group: which worker's end was the cause, and what ended it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from elastic_harness import zygote
from elastic_harness.errors import ConfigError
from elastic_harness.exception_report import signal_name
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import EXIT_MISSING_MAIN_GUARD
from elastic_harness.restart import Failure

# How long a failure that looks like the consequence of another one waits for that other one to show.
_CULPRIT_SECONDS = 2.0

_MISSING_MAIN_GUARD = (
    'The script calls fit() outside of `if __name__ == "__main__":`. Every worker imports the script, so that line '
    'is needed: put what builds the Trainer and calls fit() below `if __name__ == "__main__":`.'
)


def first_failure(workers: Sequence[LocalWorker], read: Callable[[LocalWorker], None], **common: Any) -> Failure:
    """The failure that the others of a generation only follow from.

    Args:
        workers: of this node; at least one has ended.
        read: takes in what a worker has sent.
        common: what is known of the failure whatever it is; fields of ``Failure``.

    Raises:
        ConfigError: a worker saw that the input is bad.
    """
    zygote.wake()
    deadline = time.monotonic() + _CULPRIT_SECONDS
    while True:
        ended = [each for each in workers if each.raised or not each.process.is_alive()]
        running = [each for each in workers if each not in ended]
        for each in workers:
            read(each)
        failures = [_failure_of(each, log=each.assignment.log_path, **common) for each in ended if not each.finished]
        causes = [failure for failure, consequence in failures if not consequence]
        if causes:
            return causes[0]
        if not running or time.monotonic() > deadline:
            return replace(failures[0][0], consequence=True)
        wait([handle for each in running for handle in (each.process.sentinel, each.connection)], timeout=0.05)


def out_of_memory_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since it started; None if that cannot be read."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counts["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def _failure_of(source: LocalWorker, **common: Any) -> tuple[Failure, bool]:
    """What ended a worker, and whether that only came of another one's end."""
    rank, raised = source.assignment.rank, source.raised
    if raised is not None and raised.refused:
        raise ConfigError(raised.refused)
    if raised is not None and raised.exit_code is None:
        killed = raised.killed_by is not None
        failure = Failure(
            rank, "signal" if killed else "exception", raised.killed_by or raised.name, raised.message, raised.place,
            permanent=raised.permanent, types=raised.types, in_loader=raised.in_loader, traceback=raised.traceback,
            **common,
        )  # fmt: skip
        return failure, raised.consequence
    code = raised.exit_code if raised is not None else source.process.exitcode
    assert code is not None
    if code == EXIT_MISSING_MAIN_GUARD and not source.progress.started:
        raise ConfigError(_MISSING_MAIN_GUARD)
    if code == zygote.EXIT_CODE_OF_ORPHANS and not zygote.is_alive():
        return Failure(None, "zygote", "", **common), False
    if code < 0:
        return Failure(rank, "signal", signal_name(-code), exit_code=code, **common), False
    # A worker that never got as far as its first message ended in the import of the user's script, before its
    # output went to its log: it will do so again.
    return Failure(rank, "exit", "", exit_code=code, permanent=not source.progress.started, **common), False
