"""scikit-learn's digit scans as an ImageFolder tree: real images to train on where there is no ImageNet.

Written as JPEG files, so that they are listed, decoded and augmented just as ImageNet is.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import numpy as np
from PIL import Image

_SIDE = 32
_VAL_IMAGES = 297


def write_digits(root: Path) -> None:
    """Write the 1,797 scans, 1,500 to train on and 297 to validate, unless they are there.

    Any number of processes may do so at once, and none of them ever sees half of it.

    Args:
        root: gets ``train/<digit>/*.jpg`` and ``val/<digit>/*.jpg``.
    """
    if (root / "train").is_dir():
        return
    draft = root.parent / f".{root.name}.{uuid.uuid4().hex}"
    try:
        draft.mkdir(parents=True)
        _write_images(draft)
        draft.rename(root)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        # A folder that is not empty cannot be replaced: another process was faster.
        if not (root / "train").is_dir():
            raise ValueError(
                f"data.root={root}: the digit scans cannot be written ({error.strerror}): "
                "set data.root to a new folder that this user may write."
            ) from error


def _write_images(root: Path) -> None:
    # Imported here: it takes a second, and is needed once on a machine.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, val = train_test_split(
        np.arange(len(digits.target)), test_size=_VAL_IMAGES, stratify=digits.target, random_state=0
    )
    for split, indices in (("train", train), ("val", val)):
        for label in range(10):
            (root / split / str(label)).mkdir(parents=True)
        for index in indices:
            pixels = np.round(digits.images[index] * (255 / 16)).astype(np.uint8)  # 17 levels of gray
            image = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
            image.save(root / split / str(digits.target[index]) / f"{index:04d}.jpg", quality=95)
