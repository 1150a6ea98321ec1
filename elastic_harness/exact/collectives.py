"""Refuses collectives where a run must not depend on how many workers there are: inside ``training_step``."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

from elastic_harness import exception_report
from elastic_harness.errors import ConfigError

_PREFIXES = ("all", "barrier", "broadcast", "gather", "monitored", "recv", "reduce", "scatter", "send")
METHODS = [name for name in vars(ProcessGroup) if name.lstrip("_").startswith(_PREFIXES)]
"""What every function of ``torch.distributed`` ends up in, however it was imported."""


@contextlib.contextmanager
def refused(where: str) -> Iterator[None]:
    """While it lasts, a collective raises ConfigError, naming the user's line.

    Args:
        where: name of the hook that runs.
    """
    before = {name: vars(ProcessGroup)[name] for name in METHODS}
    for name in METHODS:
        setattr(ProcessGroup, name, _refusal(name, where))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(ProcessGroup, name, method)


def _refusal(name: str, where: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        stack = traceback.extract_stack()
        called = next((frame.name for frame in stack if frame.filename == distributed_c10d.__file__), name)
        raise ConfigError(
            f"{where} calls torch.distributed.{called} ({exception_report.place_of(stack)}), and a worker may run it "
            "several times a step, for the logical ranks it hosts: take the call out (self.log(..., sync_dist=True) "
            "needs none), or use elastic.consistency=none."
        )

    return refuse
