"""The ImageFolder layout on disk: ``<split>/<class>/**/<image>``, listed fast and compared between splits.

Names that start with a dot and ``lost+found`` are left out, so that what a notebook or a file system leaves
behind never becomes class 0. A listing is kept compact, about 40 bytes an image: it travels to every process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS  # type: ignore[import-untyped]

_EXTENSIONS: tuple[str, ...] = tuple(IMG_EXTENSIONS)
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Split:
    """The images of one split, in a fixed order: by class, then by path.

    Args:
        folder: the split's folder.
        classes: class names in sorted order; the position is the label.
        labels: label of each image, shape ``(n,)``.
        paths: all paths relative to ``folder``, UTF-8, one after the other.
        ends: where each path ends in ``paths``, shape ``(n,)``.
    """

    folder: str
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    paths: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Full path of one image."""
        start = int(self.ends[index - 1]) if index else 0
        return os.path.join(self.folder, os.fsdecode(self.paths[start : int(self.ends[index])]))  # noqa: PTH118

    def label(self, index: int) -> int:
        """Label of one image."""
        return int(self.labels[index])

    def empty_classes(self) -> list[str]:
        """Classes without any image."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return [name for name, count in zip(self.classes, counts, strict=True) if count == 0]


def list_split(folder: Path) -> Split:
    """List the images of one split without opening any.

    Args:
        folder: holds one folder a class.
    """
    classes = tuple(sorted(entry.name for entry in _visible(str(folder)) if entry.is_dir()))
    labels: list[int] = []
    encoded: list[bytes] = []
    for label, name in enumerate(classes):
        names = sorted(_images(str(folder), name))
        labels.extend([label] * len(names))
        encoded.extend(os.fsencode(path) for path in names)
    ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
    return Split(str(folder), classes, np.array(labels, dtype=np.int32), b"".join(encoded), ends)


def _visible(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name != "lost+found":
                yield entry


def _images(folder: str, below: str) -> Iterator[str]:
    for entry in _visible(f"{folder}/{below}"):
        # The name decides first: asking for the kind of 1.28 million entries is slow on some file systems.
        if entry.name.lower().endswith(_EXTENSIONS):
            yield f"{below}/{entry.name}"
        elif entry.is_dir():
            yield from _images(folder, f"{below}/{entry.name}")


def layout_problems(root: Path) -> list[str]:
    """What is wrong with the folders themselves, before anything is listed."""
    if not root.exists():
        return [f"data.root={root} does not exist: set data.root to a folder that holds train/ and val/."]
    missing = [name for name in ("train", "val") if not (root / name).is_dir()]
    if not missing:
        return []
    found = _shown(sorted(entry.name for entry in _visible(str(root)))) if root.is_dir() else "a file"
    lacks = " and ".join(f"{name}/" for name in missing)
    return [
        f"data.root={root} has no {lacks} (it holds {found or 'nothing'}): "
        "set data.root to a folder that holds train/ and val/, each with one folder a class."
    ]


def class_problems(root: Path, train: Split, val: Split) -> list[str]:
    """Where the two splits do not describe the same classes, each problem naming the class."""
    if not train.classes:
        return [f"data.root={root}: train/ has no class folder: put each class's images in train/<class>/."]
    problems = []
    for name, one, other, classes in (
        ("train", "train", "val", sorted(set(train.classes) - set(val.classes))),
        ("val", "val", "train", sorted(set(val.classes) - set(train.classes))),
    ):
        if classes:
            problems.append(
                f"data.root={root}: {_shown(classes)} in {name}/ but not in {other}/, "
                f"so labels would disagree: add to {other}/ or remove from {one}/."
            )
    for name, split in (("train", train), ("val", val)):
        if empty := split.empty_classes():
            problems.append(
                f"data.root={root}: no image in {_shown([f'{name}/{c}' for c in empty])}: "
                f"add images ({', '.join(_EXTENSIONS)}) or remove the class from both splits."
            )
    return problems


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
