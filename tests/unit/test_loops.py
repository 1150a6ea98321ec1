"""A state taken at any boundary goes on as if nothing had happened: the same hooks, in the same order."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

from elastic_harness import loops
from elastic_harness.loops import Next

BATCHES = 4


class Traced(pl.LightningModule):
    """One weight, every kind of scheduler step, and a trace of its hooks that is part of a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.trace: list[str] = []
        self.metrics: dict[str, Any] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.trace.append(f"train {self.current_epoch} {batch_idx} {self.global_step}")
        return (self.weight - 3).square().sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.trace.append(f"validate {batch_idx} {self.global_step}")
        self.log("val/loss", float(self.global_step % 5))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trace.append(f"batch end {batch_idx}")

    def on_validation_end(self) -> None:
        self.trace.append("validation end")

    def on_train_epoch_start(self) -> None:
        self.trace.append(f"epoch start {self.current_epoch}")

    def on_train_epoch_end(self) -> None:
        self.trace.append(f"epoch end {self.current_epoch}")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "interval": "step", "monitor": "val/loss", "strict": False},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["trace"] = list(self.trace)
        checkpoint["metrics"] = dict(self.trainer.callback_metrics)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.trace = list(checkpoint["trace"])
        self.metrics = checkpoint["metrics"]

    def on_train_end(self) -> None:
        self.trace.append("end")

    def on_train_start(self) -> None:
        # What the harness does for every module.
        self.trainer._logger_connector._callback_metrics.update(self.metrics)


class Boundaries:
    """Takes the state at each boundary."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self.states: list[tuple[Next, dict[str, Any]]] = []
        loops.install(trainer, self.take)

    def take(self, following: Next) -> None:
        state = self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        self.states.append((following, copy.deepcopy(state)))


def fit(folder: Path, options: dict[str, Any], resume: Path | None = None) -> tuple[Traced, Boundaries]:
    stopping = [EarlyStopping("val/loss", patience=options["patience"])] if "patience" in options else []
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=stopping,
        **{key: value for key, value in options.items() if key != "patience"},
    )
    boundaries = Boundaries(trainer)
    module = Traced()
    data = TensorDataset(torch.zeros(BATCHES, 1))
    trainer.fit(module, DataLoader(data), DataLoader(TensorDataset(torch.zeros(2, 1))), ckpt_path=resume)
    return module, boundaries


@pytest.mark.filterwarnings("ignore:.*dataloader is not resumable.*", "ignore:ReduceLROnPlateau conditioned")
@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 2, "val_check_interval": 2},
        {"max_epochs": 3, "check_val_every_n_epoch": 2},
        {"max_steps": 6, "max_epochs": -1, "val_check_interval": 2},
        {"max_epochs": 2, "val_check_interval": 3, "limit_train_batches": 3},
    ],
    ids=str,
)
def test_state_when_taken_at_any_boundary_then_goes_on_as_if_undisturbed_c02(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    undisturbed, boundaries = fit(tmp_path, options)
    assert {following for following, _ in boundaries.states} == set(Next)
    path = tmp_path / "state.ckpt"
    for number, (following, state) in enumerate(boundaries.states):
        torch.save(state, path)
        resumed, later = fit(tmp_path, options, path)
        assert resumed.trace == undisturbed.trace, f"after boundary {number}, before {following}"
        assert torch.equal(resumed.weight, undisturbed.weight)
        ends = boundaries.states[number + 1 :] or boundaries.states[-1:]
        for before, after in zip(ends, later.states, strict=True):
            assert before[0] == after[0]
            assert before[1]["loops"] == after[1]["loops"]
            assert before[1]["lr_schedulers"] == after[1]["lr_schedulers"]
