"""Small data in the formats that the recipes read."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np


def fashion_mnist(folder: Path) -> Path:
    """Eight images in the four files of Fashion-MNIST, two of them packed."""
    for split, opener, end in (("train", Path.open, ""), ("t10k", gzip.open, ".gz")):
        for name, sizes, data in (("images-idx3", (8, 28, 28), bytes(8 * 784)), ("labels-idx1", (8,), bytes(range(8)))):
            with opener(folder / f"{split}-{name}-ubyte{end}", "wb") as file:  # type: ignore[operator]
                file.write(bytes([0, 0, 8, len(sizes)]) + b"".join(size.to_bytes(4) for size in sizes) + data)
    return folder


def cifar10(folder: Path) -> Path:
    """Sixty images in each of the six files of CIFAR-10."""
    chance = np.random.default_rng(0)
    (folder / "cifar-10-batches-py").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {"data": chance.integers(0, 256, (60, 3072), np.uint8), "labels": [int(n) for n in np.arange(60) % 10]}
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch))
    return folder
