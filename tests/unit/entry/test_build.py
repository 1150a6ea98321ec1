"""From a run to module, data module and Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from elastic_harness.config import ElasticConfig, ObjectiveConfig, RunConfig
from elastic_harness.entry.build import build, objective, worker_count
from elastic_harness.errors import ConfigError, HarnessError
from elastic_harness.strategy import ElasticStrategy
from recipes.digits_mlp.module import DigitsData, DigitsMLP

HERE = "tests.unit.entry.test_build"


class CheckedData(DigitsData):
    """Looks for its files, and finds none."""

    def check(self, model: pl.LightningModule) -> None:
        assert isinstance(model, DigitsMLP)
        raise FileNotFoundError("data.root=/nowhere does not exist: set data.root.")


class Buggy(DigitsData):
    """Fails with what is not the user's input."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        eval(bug)


def run(tmp_path: Path, **changes: Any) -> RunConfig:
    groups: dict[str, Any] = {
        "model": {"_target_": "recipes.digits_mlp.module.DigitsMLP", "hidden": 8},
        "data": {"_target_": "recipes.digits_mlp.module.DigitsData"},
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.1, "betas": [0.9, 0.99]},
        "trainer": {"accelerator": "cpu", "max_epochs": 1},
    }
    return RunConfig("a", str(tmp_path), None, **{**groups, **changes})


@pytest.fixture(autouse=True)
def no_zygote(monkeypatch: Any) -> None:
    monkeypatch.setattr("elastic_harness.zygote.start", lambda *_: None)


def test_build_when_all_is_well_then_the_trainer_has_our_strategy(tmp_path: Path) -> None:
    callbacks = {"lr": {"_target_": "pytorch_lightning.callbacks.LearningRateMonitor"}}
    logger = {"_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": str(tmp_path)}
    model, data, trainer = build(
        run(tmp_path, elastic=ElasticConfig(nproc_per_node=2), callbacks=callbacks, logger=logger)
    )
    assert isinstance(data, DigitsData)
    assert isinstance(trainer.strategy, ElasticStrategy)
    assert (trainer.num_devices, trainer.default_root_dir) == (2, str(tmp_path))
    assert any(isinstance(c, pl.callbacks.LearningRateMonitor) for c in trainer.callbacks)  # type: ignore[attr-defined]
    optimizer = model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    partial: Any = model.optimizer
    assert type(partial.keywords["betas"]) is list  # nothing of OmegaConf's gets into a checkpoint


def test_build_when_called_twice_then_the_weights_are_the_same(tmp_path: Path) -> None:
    first, second = (build(run(tmp_path))[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"_target_": "recipes.digits_mlp.module.DigitsData", "batch_size": 0}}, "data.batch_size=0 must be"),
        ({"data": {"_target_": f"{HERE}.CheckedData"}}, "data.root=/nowhere does not exist"),
        ({"data": {"_target_": "builtins.dict"}}, "data._target_=builtins.dict must make a LightningDataModule"),
        (
            {"model": {"_target_": "torch.nn.Linear", "in_features": 1, "out_features": 1}, "optimizer": None},
            "model._target_",
        ),
        ({"trainer": {"accelerator": "nonsense"}}, "trainer (pytorch_lightning.Trainer) cannot be made"),
        ({"elastic": ElasticConfig(nproc_per_node="gpu")}, "elastic.nproc_per_node=gpu needs a GPU"),
    ],
)
def test_build_when_the_input_is_bad_then_the_key_is_named(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(run(tmp_path, **changes))
    assert words in str(raised.value)


@pytest.mark.parametrize("bug", ["1 / 0", "len(None)", "None.x", "{}['x']"])
def test_build_when_a_module_has_a_bug_then_its_own_exception_comes_out(tmp_path: Path, bug: str) -> None:
    with pytest.raises((ZeroDivisionError, TypeError, AttributeError, KeyError)):
        build(run(tmp_path, data={"_target_": f"{HERE}.Buggy", "bug": bug}))


@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_build_when_there_are_fewer_gpus_than_workers_then_all_use_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    _, _, trainer = build(run(tmp_path, elastic=ElasticConfig(nproc_per_node=2), trainer={"max_epochs": 1}))
    assert trainer.strategy.root_device.type == "cpu"
    assert trainer.num_devices == 2


def test_worker_count_when_asked_for_then_numbers_and_words_both_work(tmp_path: Path) -> None:
    assert worker_count(run(tmp_path, elastic=ElasticConfig(nproc_per_node=3))) == 3
    assert worker_count(run(tmp_path, elastic=ElasticConfig(nproc_per_node="auto"))) == 1
    assert worker_count(run(tmp_path, elastic=ElasticConfig(nproc_per_node="cpu"))) >= 1


def test_objective_when_the_metric_was_logged_then_it_is_a_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer._logger_connector._callback_metrics = {"val/acc": torch.tensor(0.5)}
    assert objective(run(tmp_path), trainer) is None
    assert objective(run(tmp_path, objective=ObjectiveConfig("val/acc")), trainer) == 0.5
    misspelt = run(tmp_path, objective=ObjectiveConfig("val/ac"))
    assert objective(misspelt, trainer) is None
    assert "objective.metric=val/ac was not logged: did you mean val/acc?" in capsys.readouterr().out
    monkeypatch.setattr("elastic_harness.entry.build._is_job_of_sweep", lambda: True)
    with pytest.raises(HarnessError, match="did you mean val/acc"):
        objective(misspelt, trainer)


def test_build_when_a_callback_writes_checkpoints_then_the_group_that_does_is_named(tmp_path: Path) -> None:
    callbacks = {"best": {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint", "monitor": "val/acc"}}
    with pytest.raises(ConfigError, match=r"leave callbacks.best out, and use checkpoint.every_n_steps"):
        build(run(tmp_path, callbacks=callbacks))
