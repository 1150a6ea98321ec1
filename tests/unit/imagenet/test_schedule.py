"""The learning rate at the steps that define a schedule."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from imagenet.schedule import warmup_cosine, warmup_step


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)


def rates(scheduler: LRScheduler, steps: int) -> list[float]:
    """The learning rate of each step, and the one after the last."""
    values = [float(scheduler.get_last_lr()[0])]
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        values.append(float(scheduler.get_last_lr()[0]))
    return values


def test_warmup_cosine_when_stepped_then_rises_linearly_and_falls_to_the_final_rate() -> None:
    values = rates(warmup_cosine(optimizer(), total_steps=100, warmup_fraction=0.1, final_lr_fraction=0.1), 100)
    assert values[0] == pytest.approx(0.2)
    assert values[4] == pytest.approx(1.0)
    assert values[9] == values[10] == pytest.approx(2.0)
    assert values[55] == pytest.approx(1.1)  # half-way between 2.0 and 0.2
    assert values[100] == pytest.approx(0.2)


def test_warmup_cosine_when_without_warmup_then_starts_at_the_peak_and_ends_at_zero() -> None:
    values = rates(warmup_cosine(optimizer(), total_steps=10, warmup_fraction=0.0), 12)
    assert values[0] == 2.0
    assert values[10:] == pytest.approx([0.0, 0.0, 0.0])


def test_warmup_step_when_stepped_then_cuts_at_the_milestones_of_goyal() -> None:
    values = rates(warmup_step(optimizer(), total_steps=90), 90)
    assert values[0] == pytest.approx(2.0 / 5)
    assert values[4] == values[29] == pytest.approx(2.0)
    assert values[30] == values[59] == pytest.approx(0.2)
    assert values[60] == values[79] == pytest.approx(0.02)
    assert values[80] == values[90] == pytest.approx(0.002)


@pytest.mark.parametrize("schedule", [warmup_cosine, warmup_step])
def test_schedule_when_saved_and_resumed_then_goes_on_with_the_same_rates(schedule: Any) -> None:
    undisturbed = rates(schedule(optimizer(), total_steps=20), 20)
    first = schedule(optimizer(), total_steps=20)
    rates(first, 7)
    file = io.BytesIO()
    torch.save((first.optimizer.state_dict(), first.state_dict()), file)
    file.seek(0)
    optimizer_state, scheduler_state = torch.load(file, weights_only=True)
    second = schedule(optimizer(), total_steps=20)
    second.optimizer.load_state_dict(optimizer_state)
    second.load_state_dict(scheduler_state)
    assert rates(second, 13) == undisturbed[7:]


@pytest.mark.parametrize(
    ("schedule", "arguments", "message"),
    [
        (warmup_cosine, {"warmup_fraction": 1.0}, r"scheduler\.warmup_fraction=1\.0 must be"),
        (warmup_cosine, {"final_lr_fraction": 2.0}, r"scheduler\.final_lr_fraction=2\.0 must be"),
        (warmup_step, {"milestones": [30, 60]}, r"scheduler\.milestones=\[30, 60\]: 30 must be .*share of the run"),
    ],
)
def test_schedule_when_a_value_is_impossible_then_names_key_value_and_rule(
    schedule: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(optimizer(), total_steps=10, **arguments)
