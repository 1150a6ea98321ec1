from __future__ import annotations

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from elastic_harness import loops
from elastic_harness.checkpoint.callback import ElasticCheckpoint
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.node_memory import NodeMemory
from elastic_harness.checkpoint.states import RunStates
from elastic_harness.config import CheckpointConfig, ObjectiveConfig
from elastic_harness.loops import Next
from elastic_harness.stop_signals import StopSignals
from recipes.digits_mlp.module import DigitsData, DigitsMLP

STEPS_AN_EPOCH = 23  # of 64 images; 1,437 are for training


def fit(
    folder: Path, config: CheckpointConfig, objective: ObjectiveConfig | None = None, **trainer: object
) -> pl.Trainer:
    checkpoints = CheckpointFolder(folder)
    callback = ElasticCheckpoint(checkpoints, config, objective or ObjectiveConfig())
    states = RunStates(
        NodeMemory(folder, 0, folder / ".states"), checkpoints, config.keep_last, {"seed": 42}, None, StopSignals()
    )
    made = pl.Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        default_root_dir=folder,
        **{"max_epochs": 2, **trainer},  # type: ignore[arg-type]
    )

    def on_boundary(following: Next) -> None:
        if kinds := callback.due(made, following):
            state = made._checkpoint_connector.dump_checkpoint(weights_only=False)
            states.submit(callback.capture(state, kinds, states.memory.places, last=following is Next.END), 0)
            states.finish_writing()

    made.strategy.is_exact = True  # type: ignore[attr-defined]
    loops.install(made, on_boundary)
    try:
        made.fit(DigitsMLP(optimizer=torch.optim.Adam), datamodule=DigitsData())
    finally:
        states.memory.drop()
    return made


def names(folder: Path) -> list[str]:
    return CheckpointFolder(folder).names()


def test_callback_when_every_n_steps_is_set_then_writes_multiples_and_the_last_one(tmp_path: Path) -> None:
    fit(tmp_path, CheckpointConfig(every_n_steps=10, keep_last=100))
    assert names(tmp_path) == [f"step_{step:08d}.ckpt" for step in (10, 20, 30, 40, 46)]


def test_callback_when_keep_last_is_2_then_the_newest_two_stay(tmp_path: Path) -> None:
    fit(tmp_path, CheckpointConfig(every_n_steps=10, keep_last=2))
    assert names(tmp_path) == ["step_00000040.ckpt", "step_00000046.ckpt"]


def test_callback_when_every_n_steps_is_0_then_writes_the_last_one_only(tmp_path: Path) -> None:
    fit(tmp_path, CheckpointConfig(every_n_steps=0))
    assert names(tmp_path) == ["step_00000046.ckpt"]


def test_callback_when_due_just_before_a_validation_then_writes_after_it(tmp_path: Path) -> None:
    fit(tmp_path, CheckpointConfig(every_n_steps=STEPS_AN_EPOCH, keep_last=9), max_epochs=1)
    (name,) = names(tmp_path)
    state = torch.load(tmp_path / name, weights_only=True)
    validation = state["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    assert validation["is_last_batch"]
    assert validation["current"]["completed"] > 0


def test_callback_when_the_objective_improves_then_the_best_is_kept(tmp_path: Path) -> None:
    trainer = fit(tmp_path, CheckpointConfig(every_n_steps=0), ObjectiveConfig("val/acc", "max"), max_epochs=3)
    callback = trainer.checkpoint_callback
    assert isinstance(callback, ElasticCheckpoint)
    best = Path(callback.best_model_path)
    assert best.name.startswith("best_")
    assert best.exists()
    assert CheckpointFolder(tmp_path).names("best") == [best.name]
    recorded = torch.load(best, weights_only=True)["callbacks"]["ElasticCheckpoint"]["metrics"]["val/acc"]
    assert callback.best_model_score == pytest.approx(recorded)
    assert isinstance(DigitsMLP.load_from_checkpoint(best), DigitsMLP)


def test_callback_when_direction_is_min_then_the_smallest_is_the_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    callback = ElasticCheckpoint(folder, CheckpointConfig(), ObjectiveConfig("val/loss", "min"))
    scores = {"best_00000001.ckpt": 2.0, "best_00000002.ckpt": 1.0}
    callback.load_state_dict({**callback.state_dict(), "scores": scores})
    assert callback.best_model_path.endswith("best_00000002.ckpt")
    assert callback.best_model_score == 1.0
    assert ElasticCheckpoint(folder, CheckpointConfig(), ObjectiveConfig()).best_model_path == ""


def test_callback_when_it_saves_then_the_manifest_says_of_what(tmp_path: Path) -> None:
    fit(tmp_path, CheckpointConfig(every_n_steps=0))
    found, _ = CheckpointFolder(tmp_path).newest_valid()
    assert found is not None
    assert (found.manifest.step, found.manifest.epoch, found.manifest.fingerprint) == (46, 2, {"seed": 42})
