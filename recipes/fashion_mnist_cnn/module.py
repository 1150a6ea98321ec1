"""A small convolutional network and Fashion-MNIST (Xiao et al., 2017); both run under a plain ``pl.Trainer``."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[Tensor, Tensor]

_FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
          "val": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip


class FashionCNN(pl.LightningModule):
    """Two convolutions with BatchNorm, cross entropy, accuracy as ``val/acc``.

    A batch is images ``(n, 1, 28, 28)`` of bytes, and labels ``(n,)``.

    Args:
        optimizer: called with the parameters; needed for training only.
        width: channels of the first convolution; the second one has twice as many.
        dropout: share of the values that are left out before the last layer in training.
    """

    def __init__(
        self, optimizer: Callable[..., Optimizer] | None = None, width: int = 16, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer"])
        self.optimizer = optimizer
        self.net = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * width * 7 * 7, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images.float() / 127.5 - 1.0)
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
            raise ValueError("optimizer is needed for training: pass FashionCNN(optimizer=...).")
        return self.optimizer(self.parameters())


class FashionMNIST(pl.LightningDataModule):
    """60,000 images for training, 10,000 for validation.

    Args:
        root: folder with the four files, packed (``.gz``) or not, or the one given to torchvision's ``FashionMNIST``.
        batch_size: images in a batch of one logical rank.
    """

    description = "Fashion-MNIST"

    def __init__(self, root: str, batch_size: int = 64) -> None:
        super().__init__()
        self.root, self.batch_size = Path(root), batch_size

    def check(self, model: pl.LightningModule) -> None:
        """See that the files are there."""
        for names in _FILES.values():
            for name in names:
                self._path(name)

    def setup(self, stage: str) -> None:
        self.train, self.val = (TensorDataset(*map(self._read, _FILES[split])) for split in ("train", "val"))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.val, 4 * self.batch_size)

    def _path(self, name: str) -> Path:
        for folder in (self.root, self.root / "FashionMNIST" / "raw"):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
        raise FileNotFoundError(
            f'data.root={self.root} has no {name}.gz: let torchvision fetch it, `python -c "from torchvision.datasets '
            f"import FashionMNIST as F; F('{self.root}', download=True)\"`, or on Debian with `apt-get install "
            "dataset-fashion-mnist` and data.root=/usr/share/datasets/fashion-mnist."
        )

    def _read(self, name: str) -> Tensor:
        """Images ``(n, 1, 28, 28)`` or labels ``(n,)`` of an IDX file: magic number, sizes, bytes."""
        path = self._path(name)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        sizes = [int.from_bytes(data[4 * place : 4 * place + 4]) for place in range(1, data[3] + 1)]
        values = torch.frombuffer(bytearray(data[4 + 4 * len(sizes) :]), dtype=torch.uint8).view(sizes)
        return values[:, None] if len(sizes) == 3 else values.long()
