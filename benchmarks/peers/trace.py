"""The trace of a run: one line for every optimizer step of every worker, read while the run goes on.

Imports nothing but the standard library, so that a benchmark starts at once; ``step_trace`` has the callback that
writes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """A worker finished an optimizer step.

    Args:
        time: ``time.time()`` when it had.
        rank: global rank of the worker.
        pid: its process.
        step: optimizer steps of the whole run so far, this one included.
    """

    time: float
    rank: int
    pid: int
    step: int


def append(path: Path, step: Step) -> None:
    """Add one line, in one write to a file opened for appending: lines of several workers never mix."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{step.time!r} {step.rank} {step.pid} {step.step}\n".encode())
    finally:
        os.close(handle)


def read(path: Path) -> list[Step]:
    """The steps so far, in the order in which they were written; none before the first."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [Step(float(time), int(rank), int(pid), int(step)) for time, rank, pid, step in fields]
