from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from elastic_harness.errors import ConfigError
from elastic_harness.exact import evaluation


class Pairs(pl.LightningModule):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        raise AssertionError("no step should run")


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
def test_loaders_when_several_are_evaluated_together_then_they_are_refused(mode: Any) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, barebones=False
    )
    evaluation.install(trainer)
    loaders = {"a": DataLoader(range(8)), "b": DataLoader(range(5))}  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"mode='{mode}'.*mode='sequential'.*consistency=none"):
        trainer.validate(Pairs(), CombinedLoader(loaders, mode), verbose=False)
