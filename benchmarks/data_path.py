"""Images a second on one core: this data path beside torchvision's ImageFolder with PIL.

    python benchmarks/data_path.py

Both read the same 500x375 JPEG files, cut from the two photographs that come with scikit-learn, and make batches of
32 random 224-pixel crops: the same distribution of crops, the same antialiased bilinear interpolation. ImageFolder
normalises each image in the loader. This data path hands on bytes, which are normalised on the device; without a
GPU that is the same core, so both counts are shown. Processor time is measured, and short rounds alternate, so that
a busy machine changes little. A ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader
from torchvision import datasets, transforms  # type: ignore[import-untyped]

from imagenet.dataset import Collate, ImageDataset
from imagenet.decode import read_rgb
from imagenet.folder import list_split
from imagenet.transforms import TrainTransform, normalise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 32


def write_photographs(root: Path, count: int) -> None:
    """Different cuts of real photographs, at the quality and size that is common in ImageNet."""
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    random = np.random.default_rng(0)
    for index in range(count):
        photograph = photographs[index % len(photographs)]
        width = int(random.integers(400, photograph.width + 1))
        height = min(width * 3 // 4, photograph.height)
        left = int(random.integers(0, photograph.width - width + 1))
        top = int(random.integers(0, photograph.height - height + 1))
        cut = photograph.crop((left, top, left + width, top + height))
        folder = root / str(index % 2)
        folder.mkdir(parents=True, exist_ok=True)
        cut.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{index}.jpg", quality=90)


def ours(root: Path) -> Iterable[tuple[Any, ...]]:
    """Batches of bytes, as the loader of this repository hands them on."""
    transform = TrainTransform(224, (0.08, 1.0), flip=True)
    dataset = ImageDataset(list_split(root), transform, skip=False, replace=True, max_bad_images=0)
    return iter(DataLoader(dataset, BATCH, shuffle=True, collate_fn=Collate(224, skip=False)))


def ours_normalised(root: Path) -> Iterable[Any]:
    """The same, normalised on this core."""
    return (normalise(batch[0], MEAN, STD) for batch in ours(root))


def theirs(root: Path) -> Iterable[Any]:
    """Batches of torchvision's ImageFolder with its default PIL loader and the usual transforms."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return iter(DataLoader(datasets.ImageFolder(root, transform), BATCH, shuffle=True))


def decoded(root: Path) -> Iterable[Any]:
    """Images read and decoded, nothing else: what any pipeline on this decoder is bounded by."""
    split = list_split(root)
    return (read_rgb(split.path(index)) for index in range(len(split)))


def rate(batches: Iterable[Any], count: int) -> float:
    """Images a second of processor time in one pass."""
    start = time.process_time()
    for _ in batches:
        pass
    return count / (time.process_time() - start)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128, help="images a round (default: 128)")
    parser.add_argument("--rounds", type=int, default=21, help="rounds, each measuring all (default: 21)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count = arguments.images
    paths = {
        "torchvision ImageFolder + PIL": theirs,
        "imagenet, bytes for a GPU": ours,
        "imagenet, normalised on the core": ours_normalised,
        "imagenet, decoding alone": decoded,
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_photographs(root, count)
        for batches in paths.values():  # warm the file cache and every code path
            rate(batches(root), count)
        rounds = [[rate(batches(root), count) for batches in paths.values()] for _ in range(arguments.rounds)]
    print(f"500x375 JPEG to 224-pixel crops, one core, median of {arguments.rounds} rounds of {count} images")
    print(f"{'data path':36}{'images/s':>10}{'ratio':>8}")
    for column, name in enumerate(paths):
        rates = statistics.median(row[column] for row in rounds)
        ratio = statistics.median(row[column] / row[0] for row in rounds)
        print(f"{name:36}{rates:10.0f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
