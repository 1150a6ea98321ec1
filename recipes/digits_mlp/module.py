"""A multi-layer perceptron and scikit-learn's 1,797 digit scans; both run under a plain ``pl.Trainer``."""

from __future__ import annotations

from collections.abc import Callable

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[Tensor, Tensor]


class DigitsMLP(pl.LightningModule):
    """One hidden layer, cross entropy, accuracy as ``val/acc``.

    A batch is images ``(n, 64)`` between 0 and 1, and labels ``(n,)``.

    Args:
        optimizer: called with the parameters; needed for training only.
        hidden: width of the hidden layer.
    """

    def __init__(self, optimizer: Callable[..., Optimizer] | None = None, hidden: int = 128) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer"])
        self.optimizer = optimizer
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        self.log("val/loss", F.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.log("val/acc", accuracy, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> Optimizer:
        if self.optimizer is None:
            raise ValueError("optimizer is needed for training: pass DigitsMLP(optimizer=...).")
        return self.optimizer(self.parameters())


class DigitsData(pl.LightningDataModule):
    """The digits, every fifth one for validation.

    Args:
        batch_size: images a batch, on each worker (with the harness, each logical rank).
        num_workers: loading processes a worker; the images are in memory, so none are needed.
    """

    def __init__(self, batch_size: int = 64, num_workers: int = 0) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"data.batch_size={batch_size} must be at least 1: set the images a batch.")
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.train_set: TensorDataset | None = None
        self.val_set: TensorDataset | None = None

    def setup(self, stage: str) -> None:
        pixels, digits = load_digits(return_X_y=True)
        images = torch.tensor(pixels, dtype=torch.float32) / 16
        labels = torch.tensor(digits, dtype=torch.int64)
        held_out = torch.arange(len(labels)) % 5 == 0
        self.train_set = TensorDataset(images[~held_out], labels[~held_out])
        self.val_set = TensorDataset(images[held_out], labels[held_out])

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(self.val_set, shuffle=False)

    def _loader(self, dataset: TensorDataset | None, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
        assert dataset is not None, "setup() comes first"
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
