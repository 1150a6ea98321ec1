"""What goes on within an epoch is the same after a restart there, and what would not be is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integration.conftest import Run

STEPS = 6  # 1,437 samples, 4 logical ranks of 60
EPOCHS = 4


def trace_of(path: Path) -> tuple[dict[int, Any], dict[int, Any]]:
    """Learning rates by step and measurements by epoch; what was done again has to come out the same."""
    rates: dict[int, Any] = {}
    epochs: dict[int, Any] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        found, key = (rates, line["step"]) if "step" in line else (epochs, line["epoch"])
        assert found.setdefault(key, line) == line
    return rates, epochs


def test_run_when_killed_within_an_epoch_then_schedules_and_unlogged_metrics_are_the_same(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    stories = []
    for workers in (1, 3):
        run = start(
            *("~optimizer", "~model.hidden", "model._target_=metered.MeteredMLP", "objective.metric=null"),
            *(f"+model.trace={tmp_path / f'trace{workers}'}", f"elastic.nproc_per_node={workers}"),
            *("elastic.logical_world_size=4", "elastic.num_threads=1", "data.batch_size=60"),
            *(f"trainer.max_epochs={EPOCHS}", "checkpoint.every_n_steps=1"),
            *([f"+model.kill={tmp_path / 'killed'}"] if workers == 3 else []),
        )
        run.finish()
        assert run.result["restarts"] == (workers == 3)
        curve = EventAccumulator(str(run.folder / "tensorboard")).Reload().Scalars("val/each")
        assert [point.step for point in curve] == list(range(EPOCHS * 6)), "the 6 batches of each validation"
        stories.append((run.result["weights_sha256"], run.result["metrics"], trace_of(tmp_path / f"trace{workers}")))
        run.folder.rename(tmp_path / f"run{workers}")
    one, killed = stories
    assert killed == one
    _, metrics, (rates, epochs) = one
    assert sorted(rates) == list(range(EPOCHS * STEPS))
    assert [epoch["labels"][0] for epoch in epochs.values()] == [1437] * EPOCHS
    assert [epoch["validated"] for epoch in epochs.values()] == [360] * EPOCHS
    assert metrics["train/twice"] == pytest.approx(2 * metrics["train/loss"])


def test_run_when_resumed_within_an_epoch_with_another_batch_size_or_seed_then_it_is_refused(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    shape = ("elastic.logical_world_size=2", "checkpoint.every_n_steps=2", "objective.metric=null")
    run = start(*shape, "data.batch_size=64", "trainer.max_epochs=1", "trainer.max_steps=6")
    run.finish()
    run.folder.rename(tmp_path / "before")
    checkpoint = tmp_path / "before" / "checkpoints" / "step_00000006.ckpt"
    again = start(*shape, "data.batch_size=32", "seed=8", f"resume={checkpoint}")
    again.finish(code=2)
    assert "train_dataloader.batch_size=32 must be the 64 of the checkpoint" in again.stderr
    assert "seed=8 must be the" in again.stderr
    assert "Traceback" not in again.stderr
