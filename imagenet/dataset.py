"""One image file to one training sample, and what happens to a file that cannot be read.

``fail`` raises, naming the path. ``skip`` takes the next readable image instead in training, since all ranks
must take the same number of steps, and leaves the file out of a validation batch, where a replacement would
be counted twice. The batch says which files were skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from imagenet.decode import UnreadableImageError, read_rgb
from imagenet.folder import Split
from imagenet.transforms import Transform

_log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """One sample: ``image`` is None where a file was left out; ``bad`` is the path of a file that was skipped."""

    image: Tensor | None
    label: int
    bad: str | None


class ImageDataset(Dataset[Sample]):
    """The images of a split.

    Args:
        split: the listing.
        transform: from uint8 ``(3, height, width)`` to uint8 ``(3, image_size, image_size)``.
        skip: whether an unreadable file is skipped; else it raises ``UnreadableImageError``.
        replace: whether a skipped file's place is taken by the next readable one.
        max_bad_images: with more unreadable files than this in a row, the search for a readable one ends.
    """

    def __init__(self, split: Split, transform: Transform, *, skip: bool, replace: bool, max_bad_images: int) -> None:
        self.split = split
        self.transform = transform
        self.skip = skip
        self.replace = replace
        self.max_bad_images = max_bad_images
        self._reported: set[str] = set()

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Sample:
        path = self.split.path(index)
        try:
            return Sample(self.transform(read_rgb(path)), self.split.label(index), None)
        except UnreadableImageError as error:
            if not self.skip:
                raise
            self._report(path, error)
        if not self.replace:
            return Sample(None, self.split.label(index), path)
        return self._next_readable(index, path)

    def _next_readable(self, index: int, bad: str) -> Sample:
        last = bad
        for offset in range(1, min(self.max_bad_images + 1, len(self))):
            other = (index + offset) % len(self)
            last = self.split.path(other)
            try:
                image = read_rgb(last)
            except UnreadableImageError as error:
                self._report(last, error)
                continue
            # Only the file asked for is counted: the others are when their own turn comes.
            return Sample(self.transform(image), self.split.label(other), bad)
        raise too_many_bad_images(min(self.max_bad_images + 1, len(self)), last, self.max_bad_images)

    def _report(self, path: str, error: UnreadableImageError) -> None:
        if path not in self._reported:
            self._reported.add(path)
            _log.warning("skipped unreadable image %s: %s", path, error.__cause__)


def too_many_bad_images(count: int, path: str, limit: int) -> UnreadableImageError:
    """The error that ends a run whose data is damaged beyond what was allowed."""
    return UnreadableImageError(
        f"data.max_bad_images={limit}: {count} unreadable images, one of them {path}: "
        "repair the data, or raise data.max_bad_images."
    )


class Collate:
    """Puts samples together: images uint8 ``(n, 3, size, size)``, labels int64 ``(n,)``, maybe paths skipped.

    Args:
        image_size: side of the images, for a batch from which every image was left out.
        skip: whether files may be skipped; only then has a batch the paths of those that were.
    """

    def __init__(self, image_size: int, *, skip: bool) -> None:
        self.image_size = image_size
        self.skip = skip

    def __call__(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, tuple[str, ...]]:
        kept = [(sample.image, sample.label) for sample in samples if sample.image is not None]
        # Channels last, as decoders write and convolutions read: the pixels are copied in their order.
        images = (
            torch.stack([image.permute(1, 2, 0) for image, _ in kept])
            if kept
            else torch.empty((0, self.image_size, self.image_size, 3), dtype=torch.uint8)
        ).permute(0, 3, 1, 2)
        labels = torch.tensor([label for _, label in kept], dtype=torch.int64)
        if not self.skip:
            return images, labels
        return images, labels, tuple(sample.bad for sample in samples if sample.bad is not None)
