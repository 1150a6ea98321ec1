"""Refuses collectives where a run must not depend on how many workers there are: inside ``training_step``."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from elastic_harness import exception_report
from elastic_harness.errors import ConfigError

_NAMES = [
    name
    for name in (
        *("all_reduce", "reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "gather"),
        *("all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "scatter", "all_to_all"),
        *("all_to_all_single", "barrier", "send", "recv", "isend", "irecv"),
    )
    if hasattr(dist, name)
]


@contextlib.contextmanager
def refused(where: str) -> Iterator[None]:
    """While it lasts, a collective raises ConfigError, naming the user's line.

    Args:
        where: name of the hook that runs.
    """
    before = {name: getattr(dist, name) for name in _NAMES}
    for name in _NAMES:
        setattr(dist, name, _refusal(name, where))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def _refusal(name: str, where: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        place = exception_report.place_of(traceback.extract_stack())
        raise ConfigError(
            f"{where} calls torch.distributed.{name} ({place}), and a worker may run it several times a step, for the "
            "logical ranks it hosts: take the call out (self.log(..., sync_dist=True) needs none), or use "
            "elastic.consistency=none."
        )

    return refuse
