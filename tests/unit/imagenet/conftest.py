"""A small ImageFolder tree of real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """A smooth random RGB image of the given width and height."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """train/ and val/ with classes ``cat`` and ``dog``: 4 images of each to train on, 2 to validate."""
    root = tmp_path / "images"
    for split, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(("cat", "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture(10 * label + index).save(folder / f"{index}.jpg")
    return root
