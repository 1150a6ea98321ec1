"""The sample data: a datamodule that brings its images along."""

from __future__ import annotations

import os
from pathlib import Path

import pytorch_lightning as pl

from imagenet.datamodule import ImageNetDataModule
from imagenet.digits import write_digits


class ImageNetSampleDataModule(ImageNetDataModule):
    """The digit scans, written on first use.

    The arguments are those of ``ImageNetDataModule``; without ``root`` they go to the user's cache folder.
    """

    @property
    def description(self) -> str:
        """One line for the header of a run."""
        return (
            "1,797 digit scans from scikit-learn "
            "(a stand-in for ImageNet; data=imagenet data.root=... trains on the real thing)"
        )

    def prepare_data(self) -> None:
        """Write the scans if they are not there."""
        write_digits(self.root)

    def check(self, model: pl.LightningModule) -> None:
        """Write the scans if they are not there, then as ``ImageNetDataModule.check``."""
        write_digits(self.root)
        super().check(model)

    def _default_root(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "elastic-harness" / "digits-v1"
