"""What defines a run's result, so that a checkpoint of one experiment is not taken for the state of another.

Model, data, optimizer, scheduler, seed, number of logical ranks, precision, and what else of the Trainer changes an
optimizer step. Not how long it trains, what is logged, or where it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from elastic_harness.config.spelling import shown
from elastic_harness.errors import ConfigError

_GROUPS = ("model", "data", "optimizer", "scheduler")
_KEYS = (
    "seed",
    "elastic.logical_world_size",
    "trainer.precision",
    "trainer.gradient_clip_val",
    "trainer.gradient_clip_algorithm",
    "trainer.accumulate_grad_batches",
)
# How fast the data come, not which.
_SPEED = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")


def fingerprint_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's ``config.yaml`` that define its result, by dotted key.

    An absolute path in ``data`` is where the data lie on this machine, and not among them.

    Args:
        config: content of ``config.yaml``; in a script that is the ``elastic`` group alone.
    """
    defining = {key: value for key, value in _flat(config, "") if _defines(key, value)}
    result: dict[str, Any] = json.loads(json.dumps(defining, default=str))  # as a manifest gives it back
    return result


def compare(recorded: Mapping[str, Any], now: Mapping[str, Any], folder: str) -> None:
    """See that a run goes on as what it was.

    Args:
        recorded: the fingerprint of its newest checkpoint.
        now: that of this start.
        folder: where the checkpoint lies.

    Raises:
        ConfigError: with a line for each key that differs.
    """
    lines = differences(recorded, now)
    if lines:
        raise ConfigError(
            f"the run must go on as what it was, and what is in {folder} is of another experiment:\n"
            + "\n".join(lines)
            + "\nPut these back, start another run with another run_id (in a script: "
            "run_dir), start over with resume=never, or go on all the same with resume=force."
        )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """A line for each key in which two fingerprints differ."""
    keys = sorted(key for key in {*one, *other} if _differ(one.get(key), other.get(key)))
    return [f"  {key}: {shown(one.get(key))} -> {shown(other.get(key))}" for key in keys]


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other) and json.dumps(one) != json.dumps(other)  # nan is not equal to itself


def _defines(key: str, value: Any) -> bool:
    group, _, name = key.partition(".")
    if value is None:
        return False
    if group == "data":
        is_path = isinstance(value, str) and PurePath(value).is_absolute()
        return not is_path and name.rpartition(".")[2] not in _SPEED
    return group in _GROUPS or key in _KEYS


def _flat(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
