"""Learning-rate schedules by optimizer step: a linear warm-up (Goyal et al. 2017, arXiv:1706.02677), a decay.

Each is a ``LambdaLR`` around a plain function, so its state is numbers only, and a resumed run computes the
rate from the step count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup_fraction: float = 0.05,
    final_lr_fraction: float = 0.0,
) -> LambdaLR:
    """Warm up, then follow half a cosine without restarts (Loshchilov & Hutter 2017, arXiv:1608.03983).

    Args:
        optimizer: its learning rates are the peak.
        total_steps: optimizer steps of the whole run.
        warmup_fraction: share of the run that the warm-up takes.
        final_lr_fraction: learning rate after the last step, as a share of the peak.
    """
    warmup = _warmup_steps(total_steps, warmup_fraction)
    if not 0 <= final_lr_fraction <= 1:
        raise ValueError(
            f"scheduler.final_lr_fraction={final_lr_fraction} must be between 0 and 1: it is a share of the peak."
        )

    def decay(step: int) -> float:
        progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        return final_lr_fraction + (1 - final_lr_fraction) * 0.5 * (1 + math.cos(math.pi * progress))

    return _warmed_up(optimizer, warmup, decay)


def warmup_step(
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup_fraction: float = 5 / 90,
    milestones: Sequence[float] = (1 / 3, 2 / 3, 8 / 9),
    gamma: float = 0.1,
) -> LambdaLR:
    """Warm up, then cut the rate at fixed points (Goyal et al. 2017: epochs 30, 60 and 80 of 90).

    Args:
        optimizer: its learning rates are the peak.
        total_steps: optimizer steps of the whole run.
        warmup_fraction: share of the run that the warm-up takes.
        milestones: when the rate is cut, as shares of the run.
        gamma: what the rate is multiplied by at each milestone.
    """
    warmup = _warmup_steps(total_steps, warmup_fraction)
    for milestone in milestones:
        if not 0 < milestone < 1:
            raise ValueError(
                f"scheduler.milestones={list(milestones)}: {milestone} must be between 0 and 1: "
                "it is a share of the run, so epoch 30 of 90 is 0.3333."
            )
    steps = [round(milestone * total_steps) for milestone in milestones]

    def decay(step: int) -> float:
        return float(gamma ** sum(step >= milestone for milestone in steps))

    return _warmed_up(optimizer, warmup, decay)


def _warmup_steps(total_steps: int, fraction: float) -> int:
    if not 0 <= fraction < 1:
        raise ValueError(
            f"scheduler.warmup_fraction={fraction} must be at least 0 and below 1: it is a share of the run."
        )
    return round(total_steps * fraction)


def _warmed_up(optimizer: Optimizer, warmup: int, decay: Callable[[int], float]) -> LambdaLR:
    def factor(step: int) -> float:
        return (step + 1) / warmup if step < warmup else decay(step)

    return LambdaLR(optimizer, factor)
