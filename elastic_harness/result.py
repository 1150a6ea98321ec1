"""How a run ended: the content of ``result.json``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from elastic_harness.events import Timeline

if TYPE_CHECKING:
    from elastic_harness.worker import Output


@dataclass(frozen=True)
class Result:
    """The last word on a run, over all its starts.

    Args:
        status: ``finished``, ``failed`` or ``preempted``.
        step: optimizer steps finished.
        epoch: epochs finished; None unless the run finished.
        metrics: the Trainer's callback metrics at the end; None for one that is not a finite number.
        weights_sha256: hash of the final ``state_dict``, keys sorted; None unless the run finished.
        generations: worker groups started.
        restarts: worker groups started because of a failure.
        steps_lost: optimizer steps that were trained again after failures.
        world_sizes: number of workers of each generation.
        wall_seconds: seconds from the start of the agent to its end, in the last start.
    """

    status: str
    step: int
    epoch: int | None
    metrics: dict[str, float | None]
    weights_sha256: str | None
    generations: int
    restarts: int
    steps_lost: int
    world_sizes: list[int]
    wall_seconds: float

    @classmethod
    def of(cls, status: str, step: int, output: Output | None, timeline: Timeline, wall_seconds: float) -> Result:
        """Put the result together from what rank 0 sent and from the timeline."""
        generations = list(timeline.read("generation_started"))
        metrics = output.callback_metrics if output else {}
        return cls(
            status=status,
            step=step,
            epoch=output.epoch if output else None,
            metrics={name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
            weights_sha256=weights_sha256(output.state_dict) if output and output.state_dict else None,
            generations=len(generations),
            restarts=sum(event["restart"] for event in generations),
            steps_lost=sum(event["steps_lost"] for event in timeline.read("resumed")),
            world_sizes=[event["world_size"] for event in generations],
            wall_seconds=round(wall_seconds, 3),
        )


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
