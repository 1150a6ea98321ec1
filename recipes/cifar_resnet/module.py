"""ResNet for CIFAR-10 (He et al., 2016, section 4.2) and its data; both run under a plain ``pl.Trainer``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2  # type: ignore[import-untyped]

Batch = tuple[Tensor, Tensor]

_FOLDER = "cifar-10-batches-py"
_FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "val": ["test_batch"]}
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them, which has no weights.

    Args:
        given: channels that come in.
        made: channels that go out; the image is halved where they are more.
    """

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.stride, self.more = (1, 0) if given == made else (2, made - given)
        self.net = nn.Sequential(
            *(nn.Conv2d(given, made, 3, self.stride, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()),
            *(nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made)),
        )

    def forward(self, images: Tensor) -> Tensor:
        around = F.pad(images[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(self.net(images) + around)


class CIFARResNet(pl.LightningModule):
    """ResNet with 6 ``blocks`` + 2 layers, cross entropy, accuracy as ``val/acc``.

    A batch is images ``(n, 3, 32, 32)`` of bytes, and labels ``(n,)``.

    Args:
        optimizer: called with the parameters; needed for training only.
        scheduler: called with the optimizer and ``total_steps``, for a rate that changes at each step.
        blocks: in each of the three stages; 3 makes a ResNet-20.
        width: channels of the first stage.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        optimizer: Callable[..., Optimizer] | None = None,
        scheduler: Callable[..., torch.optim.lr_scheduler.LRScheduler] | None = None,
        blocks: int = 3,
        width: int = 16,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer", "scheduler"])
        self.optimizer, self.scheduler = optimizer, scheduler
        widths = [width, *(width * 2**stage for stage in range(3) for _ in range(blocks))]
        self.net = nn.Sequential(
            *(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(Block(given, made) for given, made in pairwise(widths)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
        )
        self.register_buffer("mean", 255 * torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(_STD).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net((images.float() - self.mean) / self.std)
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

    def configure_optimizers(self) -> OptimizerLRScheduler:
        if self.optimizer is None:
            raise ValueError("optimizer is needed for training: pass CIFARResNet(optimizer=...).")
        optimizer = self.optimizer(self.parameters())
        if self.scheduler is None:
            return optimizer
        scheduler = self.scheduler(optimizer, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Images(Dataset[tuple[Tensor, int]]):
    """Images and labels, with an augmentation.

    Args:
        images: ``(n, 3, 32, 32)``, bytes.
        labels: ``(n,)``.
        augment: called with each image.
    """

    def __init__(self, images: Tensor, labels: list[int], augment: Callable[[Tensor], Tensor]) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.augment(self.images[index]), self.labels[index]


class CIFAR10(pl.LightningDataModule):
    """50,000 images for training, moved by up to 4 pixels and mirrored, and 10,000 for validation.

    Args:
        root: the folder given to torchvision's ``CIFAR10``.
        batch_size: images in a batch of one logical rank.
        num_workers: loader processes of a worker.
    """

    description = "CIFAR-10"

    def __init__(self, root: str, batch_size: int = 128, num_workers: int = 0) -> None:
        super().__init__()
        self.root, self.batch_size, self.num_workers = Path(root), batch_size, num_workers

    def check(self, model: pl.LightningModule) -> None:
        """See that the files are there."""
        missing = [path for files in _FILES.values() for path in self._paths(files) if not path.is_file()]
        if missing:
            raise FileNotFoundError(
                f"data.root={self.root} has no {_FOLDER}/{missing[0].name}: let torchvision fetch it, `python -c "
                f"\"from torchvision.datasets import CIFAR10; CIFAR10('{self.root}', download=True)\"`."
            )

    def setup(self, stage: str) -> None:
        moved = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])
        self.train = Images(*self._read(_FILES["train"]), moved)
        self.val = Images(*self._read(_FILES["val"]), v2.Identity())

    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(self.train, self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(self.val, 4 * self.batch_size, num_workers=self.num_workers)

    def _paths(self, files: list[str]) -> Iterator[Path]:
        return (self.root / _FOLDER / name for name in files)

    def _read(self, files: list[str]) -> tuple[Tensor, list[int]]:
        """Images and labels of the files, which are pickles of the data set's makers."""
        parts = [pickle.loads(path.read_bytes(), encoding="latin1") for path in self._paths(files)]
        images = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
        return torch.from_numpy(images), [label for part in parts for label in part["labels"]]
