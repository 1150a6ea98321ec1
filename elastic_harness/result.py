"""How a run ended: the content of ``result.json``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch

from elastic_harness.events import Timeline

if TYPE_CHECKING:
    from elastic_harness.output import Output


@dataclass(frozen=True)
class Result:
    """The last word on a run, over all its starts.

    Args:
        status: ``finished``, ``failed`` or ``preempted``.
        failure: what went wrong, why it was not retried, and the log; None unless the run failed.
        step: optimizer steps finished.
        epoch: epochs finished, as of the last validation if the run did not finish; None if there was none.
        metrics: the Trainer's callback metrics, likewise; see ``finite``.
        weights_sha256: hash of the final ``state_dict``, keys sorted; None unless the run finished.
        generations: worker groups started.
        restarts: worker groups started because of a failure.
        resizes: worker groups started because nodes joined or left.
        steps_lost: optimizer steps that were trained again after failures.
        world_sizes: number of workers of each generation.
        wall_seconds: seconds that the agents ran.
    """

    status: str
    failure: str | None
    step: int
    epoch: int | None
    metrics: dict[str, float | None]
    weights_sha256: str | None
    generations: int
    restarts: int
    resizes: int
    steps_lost: int
    world_sizes: list[int]
    wall_seconds: float

    @classmethod
    def of(cls, status: str, failure: str | None, timeline: Timeline, output: Output | None) -> Result:
        """Put the result together from the timeline and from what rank 0 sent in the end."""
        events = list(timeline.read())
        started = [event for event in events if event["event"] == "generation_started"]
        generations = {event["generation"]: event for event in started}.values()  # each node tells of each
        evaluations = [event for event in events if event["event"] == "evaluated"]
        evaluated = evaluations[-1] if evaluations else {}
        return cls(
            status=status,
            failure=failure,
            step=timeline.last_step(),
            epoch=output.epoch if output else evaluated.get("epoch"),
            metrics=finite(output.callback_metrics) if output else evaluated.get("metrics", {}),
            weights_sha256=weights_sha256(output.state_dict) if output and output.state_dict else None,
            generations=len(generations),
            restarts=len({event["generation"] for event in started if event.get("restart", False)}),
            resizes=len({event["generation"] for event in started if event.get("resize", False)}),
            steps_lost=sum(event.get("steps_lost", 0) for event in events if event["event"] == "resumed"),
            world_sizes=[event.get("world_size", 0) for event in generations],
            wall_seconds=_wall_seconds(events),
        )


def finite(metrics: Mapping[str, SupportsFloat]) -> dict[str, float | None]:
    """Metrics as numbers that JSON has; None for one that is not finite."""
    return {name: value if math.isfinite(value := float(each)) else None for name, each in metrics.items()}


def _wall_seconds(events: Sequence[Mapping[str, Any]]) -> float:
    """The sum over all starts of the time from ``run_started`` to the last event before the next one.

    A node that joins others starts nothing anew.
    """
    total = 0.0
    started = last = events[0]["time"] if events else 0.0
    there: set[str] = set()
    for event in events:
        match event["event"]:
            case "run_started":
                if not there - {event["node"]}:
                    total += last - started
                    started = event["time"]
                there.add(event["node"])
            case "node_left":
                there.discard(event["node"])
            case "run_finished":
                there.clear()
        last = event["time"]
    return round(total + last - started, 3)


def weights_sha256(state_dict: Mapping[str, Any]) -> str:
    """Hash of a module's state: names, shapes, types and bytes of its tensors, keys sorted.

    Args:
        state_dict: as ``Module.state_dict()`` returns it; what is not a tensor is hashed by its ``repr``.
    """
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        value = state_dict[name]
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu().contiguous()
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()
