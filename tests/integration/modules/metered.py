"""A small network that measures itself, steps schedulers of every kind, and computes parts of its forward twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR
from torch.utils.checkpoint import checkpoint
from torchmetrics import CatMetric, MaxMetric, MeanMetric, PearsonCorrCoef, SumMetric


class MeteredMLP(pl.LightningModule):
    """Gradient checkpointing, three parameter groups (one is never used), four schedulers, torchmetrics objects.

    Args:
        trace: file that takes the learning rates of every step, and what rank 0 measured in each epoch.
        kill: a file; unless it is there, rank 1 kills itself after 9 steps, and leaves it.
    """

    def __init__(self, trace: str, kill: str | None = None) -> None:
        super().__init__()
        self.trace, self.kill = Path(trace), Path(kill) if kill else None
        self.body, self.head, self.unused = nn.Linear(64, 32), nn.Linear(32, 10), nn.Parameter(torch.ones(3))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.2), nn.ReLU()) for _ in range(2))
        # Updated and never logged; computed and reset where an epoch ends.
        self.loss, self.correlation, self.labels = MeanMetric(), PearsonCorrCoef(), CatMetric()
        self.best = MaxMetric()
        # Updated in a hook of each batch.
        self.validated = SumMetric()
        # Logged.
        self.val_loss = MeanMetric()

    def forward(self, images: torch.Tensor) -> Any:
        hidden = self.body(images)
        for block, reentrant in zip(self.blocks, (True, False), strict=True):
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
        return self.head(hidden)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.kill and self.global_rank == 1 and self.global_step == 9 and not self.kill.exists():
            self.kill.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        images, labels = batch
        logits = self(images)
        loss = F.cross_entropy(logits, labels)
        self.loss.update(loss)
        self.correlation.update(logits.argmax(dim=1).float() + logits[:, 0].detach(), labels.float())
        self.labels.update(labels)
        self.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        for factor in (1.0, 3.0):
            self.log("train/twice", factor * loss, on_step=False, on_epoch=True, sync_dist=True)
        self._write({"step": self.global_step, "lrs": [group["lr"] for group in self.optimizers().param_groups]})
        return loss

    def on_train_start(self) -> None:
        self.validated.reset()  # of the sanity check

    def on_train_epoch_end(self) -> None:
        labels = self.labels.compute()
        found = {
            "loss": float(self.loss.compute()),
            "correlation": float(self.correlation.compute()),
            "labels": [len(labels), int(labels.sum())],
            "validated": float(self.validated.compute()),
        }
        self.best.update(found["correlation"])
        self._write({"epoch": self.current_epoch, **found, "best": float(self.best.compute())})
        for metric in (self.loss, self.correlation, self.labels, self.validated):
            metric.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.val_loss.update(loss)
        self.log("val/loss", self.val_loss, on_epoch=True)
        self.log("val/each", loss, on_step=True, on_epoch=False)

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.validated.update(len(batch[1]))

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": [*self.body.parameters(), *self.blocks.parameters()]},
            {"params": self.head.parameters(), "lr": 0.1},
            {"params": [self.unused], "lr": 0.2},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        plateau = {"patience": 0, "threshold": 0.3, "factor": 0.7}
        schedulers = [
            {"scheduler": StepLR(optimizer, 1, 0.9), "interval": "epoch"},
            {"scheduler": CosineAnnealingLR(optimizer, 40), "interval": "step"},
            {"scheduler": ReduceLROnPlateau(optimizer, **plateau), "monitor": "train/loss"},  # type: ignore[arg-type]
            {"scheduler": ReduceLROnPlateau(optimizer, **plateau), "monitor": "val/loss"},  # type: ignore[arg-type]
        ]
        return [optimizer], schedulers

    def _write(self, line: dict[str, Any]) -> None:
        if self.global_rank == 0:
            with self.trace.open("a") as file:
                file.write(json.dumps(line) + "\n")
