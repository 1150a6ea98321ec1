"""A small convolutional network and data with everything that could depend on who computes what."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, default_collate
from torchmetrics.classification import MulticlassAccuracy


class NoisyCNN(pl.LightningModule):
    """BatchNorm, dropout, an unused parameter, noise on the device, logs of every kind, a plateau scheduler.

    Args:
        ledger: file that takes the ids of the samples of every ``training_step``.
        decisions: file that takes what rank 0 decided on: learning rates and metrics after each epoch.
        monitor: what the scheduler goes by.
        kill: a file; unless it is there, rank 1 kills itself inside the validation after 12 steps, and leaves it.
    """

    def __init__(self, ledger: str, decisions: str, monitor: str = "train/loss_epoch", kill: str | None = None) -> None:
        super().__init__()
        self.kill = Path(kill) if kill else None
        self.ledger, self.decisions, self.monitor = Path(ledger), Path(decisions), monitor
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(8 * 6 * 6, 10)
        self.unused = nn.Parameter(torch.ones(3))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        images, labels, ids = batch
        return images + 0.01 * torch.randn_like(images) if self.training else images, labels, ids

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels, ids = batch
        line = {"pid": os.getpid(), "epoch": self.current_epoch, "step": self.global_step, "ids": ids.tolist()}
        with self.ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")
        logits = self.head(self.body(images))
        loss = F.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.log("train/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("train/first", loss, on_step=False, on_epoch=True)
        self.log("train/accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.kill and self.global_rank == 1 and self.global_step == 12 and batch_idx > 3 and not self.kill.exists():
            self.kill.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        images, labels, _ = batch
        loss = F.cross_entropy(self.head(self.body(images)), labels)
        self.log("val/loss", loss, batch_size=len(labels))
        self.log("val/count", float(len(labels)), reduce_fx="sum", on_epoch=True)
        self.log("val/batches", float(batch_idx), reduce_fx="sum", on_epoch=True)

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            found = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            line = {"epoch": self.current_epoch, "lr": self.optimizers().param_groups[0]["lr"], **found}
            with self.decisions.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.body.parameters()}, {"params": [*self.head.parameters(), self.unused], "lr": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3, factor=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self.monitor}}


class NoisyDigits(pl.LightningDataModule):
    """The digits with noise of torch, numpy and ``random``, and mixup where they are collated.

    Args:
        batch_size: samples of a logical rank.
        num_workers: loader processes.
        samples: how many of the digits to train on.
    """

    def __init__(self, batch_size: int = 16, num_workers: int = 1, samples: int = 700) -> None:
        super().__init__()
        self.batch_size, self.num_workers, self.samples = batch_size, num_workers, samples

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            _Noisy(range(self.samples), noise=True),
            self.batch_size,
            shuffle=True,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=_mixup,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_Noisy(range(1500, 1539), noise=False), 4)  # D07: 39 samples, 10 batches


class _Noisy(Dataset[Any]):
    def __init__(self, ids: range, *, noise: bool) -> None:
        pixels, labels = load_digits(return_X_y=True)
        self.ids, self.noise = ids, noise
        self.images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        number = self.ids[index]
        image = self.images[number]
        if self.noise:
            image = image + 0.1 * torch.rand(1) + 0.1 * np.random.rand() + 0.1 * random.random()
        return image.float(), self.labels[number], number


def _mixup(samples: list[Any]) -> Any:
    images, labels, ids = default_collate(samples)
    return images + 0.05 * random.random() * images[torch.randperm(len(images))], labels, ids
