from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from elastic_harness import CheckpointConfig, ElasticConfig, ElasticStrategy, ObjectiveConfig, RestartConfig
from elastic_harness.config import WatchdogConfig
from elastic_harness.errors import ConfigError
from recipes.digits_mlp.module import DigitsData, DigitsMLP


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"restart": RestartConfig(policy="nevr")}, "restart.policy=nevr"),
        ({"objective": ObjectiveConfig("a", "maximum")}, "objective.direction=maximum"),
        ({"checkpoint": CheckpointConfig(keep_last=0)}, "checkpoint.keep_last=0"),
        ({"elastic": ElasticConfig(max_nodes=4)}, "elastic.max_nodes=4"),
        ({"resume": "/no/such.ckpt"}, "resume=/no/such.ckpt"),
    ],
)
def test_strategy_when_a_value_breaks_a_rule_then_it_is_named_in_a_script_too(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ElasticStrategy(**arguments)


def test_fit_when_refused_before_any_worker_starts_then_no_hook_runs_here(tmp_path: Path) -> None:
    saved = tmp_path / "saved.ckpt"

    class SaveOnException(pl.Callback):
        def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
            saved.touch()

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=ElasticStrategy(resume="never"),
        callbacks=[SaveOnException()],  # does not pickle, being local
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    with pytest.raises(ConfigError, match="cannot be sent to the workers"):
        trainer.fit(DigitsMLP(optimizer=torch.optim.Adam), datamodule=DigitsData())
    assert not saved.exists()
    assert {entry.name for entry in (tmp_path / "elastic").iterdir()} == {".lock", ".workers.lock", "checkpoints"}
    assert list((tmp_path / "elastic" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("watchdog", "seconds"),
    [
        ({"hang_timeout": 100.0, "startup_timeout": 50.0}, 200.0),
        ({"hang_timeout": 10.0, "startup_timeout": 50.0}, 100.0),
        ({}, 86400.0),
        ({"startup_timeout": 90000.0}, 180000.0),
    ],
)
def test_collective_timeout_when_workers_are_watched_then_the_watchdog_is_first(
    watchdog: dict[str, float], seconds: float
) -> None:
    timeout = ElasticStrategy(watchdog=WatchdogConfig(**watchdog))._collective_timeout()
    assert timeout is not None
    assert timeout.total_seconds() == seconds
