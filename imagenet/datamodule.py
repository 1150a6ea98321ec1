"""ImageNet and every other folder of the same layout as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from imagenet.dataset import Collate, ImageDataset, Sample, too_many_bad_images
from imagenet.folder import Split, class_problems, layout_problems, list_split
from imagenet.transforms import TrainTransform, Transform, eval_transform, normalise


class ImageNetDataModule(pl.LightningDataModule):
    """Images under ``root/train/<class>/`` and ``root/val/<class>/``.

    Loader processes decode and augment to bytes; the batch is normalised on its device.

    Args:
        root: the folder; there is no default.
        num_classes: classes it must hold; None accepts any number. Configs let the model's head follow it.
        batch_size: images a logical rank (a worker, without the harness) and step.
        num_workers: loader processes a worker; 0 loads in the worker itself.
        image_size: side of the images the model sees, in pixels.
        resize_size: the shorter side in validation before the centre crop, in pixels.
        scale: smallest and largest share of the image's area that a training crop covers.
        flip: whether half of the training images are mirrored.
        mean: mean of each channel, in units of the full range.
        std: standard deviation of each channel, likewise.
        on_bad_image: ``fail`` ends the run at an unreadable file, naming it; ``skip`` goes on and counts it.
        max_bad_images: with ``skip``, unreadable files a worker may meet before the run ends.
        pin_memory: whether batches are put into page-locked memory where there is an accelerator.
        persistent_workers: whether loader processes live on from epoch to epoch.

    Raises:
        ValueError: a value is out of its range; the message names the key.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        num_classes: int | None = None,
        batch_size: int = 32,
        num_workers: int = 4,
        image_size: int = 224,
        resize_size: int = 256,
        scale: Sequence[float] = (0.08, 1.0),
        flip: bool = True,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        on_bad_image: str = "fail",
        max_bad_images: int = 100,
        pin_memory: bool = True,
        persistent_workers: bool = True,
    ) -> None:
        super().__init__()
        self.root = Path(root or self._default_root()).expanduser().absolute()
        self.num_classes = num_classes
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.image_size = image_size
        self.resize_size = resize_size
        self.scale = tuple(scale)
        self.flip = flip
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.on_bad_image = on_bad_image
        self.max_bad_images = max_bad_images
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers
        if problems := self._value_problems():
            raise ValueError("\n".join(problems))
        # Listed once, by check, and sent along: listing 1.28 million files in each process takes seconds.
        self._splits: tuple[Split, Split] | None = None
        self._bad: set[str] = set()

    @property
    def description(self) -> str:
        """One line for the header of a run."""
        if self._splits is None:
            return f"ImageNet-style folder {self.root}"
        train, val = self._splits
        return (
            f"ImageNet-style folder {self.root}: {len(train.classes):,} classes, "
            f"{len(train):,} training and {len(val):,} validation images"
        )

    def check(self, model: pl.LightningModule) -> None:
        """Compare the folder with itself and with the model. It opens no image, so it takes seconds at most.

        Args:
            model: if it has ``num_classes``, that is compared with the classes found.

        Raises:
            ValueError: one line a problem, each naming the key, the value and the fix.
            FileNotFoundError: the folder does not exist.
        """
        if problems := layout_problems(self.root):
            raise (ValueError if self.root.exists() else FileNotFoundError)("\n".join(problems))
        try:
            train, val = list_split(self.root / "train"), list_split(self.root / "val")
        except PermissionError as error:
            raise ValueError(
                f"data.root={self.root}: {error.filename} cannot be listed: make it readable for this user."
            ) from error
        problems = class_problems(self.root, train, val) or self._head_problems(model, len(train.classes))
        if problems:
            raise ValueError("\n".join(problems))
        self._splits = train, val

    def setup(self, stage: str) -> None:
        """List the folder, unless ``check`` has done so."""
        if self._splits is None:
            assert self.trainer is not None
            self.check(self.trainer.lightning_module)

    def train_dataloader(self) -> DataLoader[Sample]:
        """Augmented images in random order."""
        transform = TrainTransform(self.image_size, (self.scale[0], self.scale[1]), flip=self.flip)
        return self._loader(self._dataset(0, transform, replace=True), shuffle=True)

    def val_dataloader(self) -> DataLoader[Sample]:
        """The centres of the validation images."""
        transform = eval_transform(self.image_size, self.resize_size)
        return self._loader(self._dataset(1, transform, replace=False), shuffle=False)

    def test_dataloader(self) -> DataLoader[Sample]:
        """The validation images: ImageNet's test labels are not public."""
        return self.val_dataloader()

    def on_after_batch_transfer(self, batch: Sequence[Any], dataloader_idx: int) -> tuple[Any, ...]:
        """Normalise on the device, and turn the paths of skipped files into their number."""
        images = normalise(batch[0], self.mean, self.std)
        if len(batch) == 2:
            return images, batch[1]
        self._bad.update(batch[2])
        if len(self._bad) > self.max_bad_images:
            raise too_many_bad_images(len(self._bad), batch[2][-1], self.max_bad_images)
        return images, batch[1], len(batch[2])

    def _default_root(self) -> Path:
        raise ValueError("data.root is not set: set it to a folder that holds train/ and val/.")

    def _dataset(self, split: int, transform: Transform, *, replace: bool) -> ImageDataset:
        assert self._splits is not None, "check or setup comes first"
        return ImageDataset(
            self._splits[split],
            transform,
            skip=self.on_bad_image == "skip",
            replace=replace,
            max_bad_images=self.max_bad_images,
        )

    def _loader(self, dataset: ImageDataset, *, shuffle: bool) -> DataLoader[Sample]:
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            collate_fn=Collate(self.image_size, skip=self.on_bad_image == "skip"),
            pin_memory=self.pin_memory and torch.accelerator.is_available(),
            persistent_workers=self.persistent_workers and self.num_workers > 0,
        )

    def _value_problems(self) -> list[str]:
        problems = [
            f"data.{key}={value} must be at least {least}: raise it."
            for key, value, least in (
                ("batch_size", self.batch_size, 1),
                ("num_workers", self.num_workers, 0),
                ("image_size", self.image_size, 1),
                ("max_bad_images", self.max_bad_images, 0),
            )
            if value < least
        ]
        if self.resize_size < self.image_size:
            problems.append(
                f"data.resize_size={self.resize_size} must be at least data.image_size={self.image_size}: "
                "raise it, or the centre crop is padded with black."
            )
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
            problems.append(
                f"data.scale={list(self.scale)} must be two shares with 0 < smallest <= largest <= 1: "
                "set it, for example to [0.08, 1.0]."
            )
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or (key == "std" and min(values) <= 0):
                rule = "three numbers, one a channel" + (", all above 0" if key == "std" else "")
                problems.append(f"data.{key}={list(values)} must be {rule}: correct it.")
        if self.on_bad_image not in ("fail", "skip"):
            problems.append(f"data.on_bad_image={self.on_bad_image} must be fail or skip: choose one.")
        return problems

    def _head_problems(self, model: pl.LightningModule, found: int) -> list[str]:
        head = getattr(model, "num_classes", None)
        counts = {"model.num_classes": head, "data.num_classes": self.num_classes}
        wrong = [key for key, value in counts.items() if value is not None and value != found]
        if not wrong:
            return []
        keys = " and ".join(f"{key}={counts[key]}" for key in wrong)
        return [
            f"{keys} must equal the {found} classes found in data.root={self.root}: set {wrong[-1]}={found}"
            + (", which model.num_classes follows in the configs." if len(wrong) > 1 else ".")
        ]
