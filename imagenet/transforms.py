"""Augmentation on uint8 tensors, and normalisation of a whole batch on its device.

The operations of torchvision's ImageNet reference, with antialiased bilinear resizing as PIL does it. Pixels
stay bytes until they reach the device: a quarter of the memory traffic of floats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torchvision.transforms import v2  # type: ignore[import-untyped]

Transform = Callable[[Tensor], Tensor]

_ASPECT_RATIO = (3 / 4, 4 / 3)
_LOG_ASPECT_RATIO = torch.tensor(_ASPECT_RATIO).log().tolist()
_TRIES = 10


class TrainTransform:
    """Random area and aspect ratio (Szegedy et al. 2015, arXiv:1409.4842), and a random horizontal flip.

    The same result as torchvision's ``RandomResizedCrop``, from the same random numbers, in half of its time: these
    are drawn as plain numbers, and the crop is made dense before it is resized, which torch does faster than reading
    a window of the whole image.

    Args:
        image_size: side of the result in pixels.
        scale: smallest and largest share of the image's area that the crop covers.
        flip: whether half of the images are mirrored.
    """

    def __init__(self, image_size: int, scale: tuple[float, float], *, flip: bool) -> None:
        self.image_size = image_size
        self.scale = scale
        self.flip = flip

    def __call__(self, image: Tensor) -> Tensor:
        rows, columns = self._box(*image.shape[1:])
        dense = image[None, :, rows, columns].contiguous(memory_format=torch.channels_last)
        resized = F.interpolate(dense, (self.image_size, self.image_size), mode="bilinear", antialias=True)[0]
        return resized.flip(-1) if self.flip and torch.rand(()).item() < 0.5 else resized

    def _box(self, height: int, width: int) -> tuple[slice, slice]:
        """Rows and columns of a random crop; the largest centre of an allowed aspect ratio if none tried fits."""
        for _ in range(_TRIES):
            area = height * width * torch.empty(1).uniform_(*self.scale).item()
            ratio = torch.empty(1).uniform_(*_LOG_ASPECT_RATIO).exp_().item()
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                top, left = (int(torch.randint(room + 1, (1,)).item()) for room in (height - h, width - w))
                return slice(top, top + h), slice(left, left + w)
        h, w = min(height, round(width / _ASPECT_RATIO[0])), min(width, round(height * _ASPECT_RATIO[1]))
        top, left = (height - h) // 2, (width - w) // 2
        return slice(top, top + h), slice(left, left + w)


def eval_transform(image_size: int, resize_size: int) -> Transform:
    """The centre of the image.

    Args:
        image_size: side of the result in pixels.
        resize_size: the shorter side is resized to this many pixels before the crop.
    """
    steps = [v2.Resize(resize_size, antialias=True), v2.CenterCrop(image_size)]
    return v2.Compose(steps)  # type: ignore[no-any-return]


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats of mean 0 and deviation 1, channels last in memory.

    Args:
        images: uint8, shape ``(n, 3, height, width)``; fastest when they are channels last in memory too.
        mean: mean of each channel, in units of the full range.
        std: standard deviation of each channel, likewise.
    """
    n, channels, height, width = images.shape
    shift, divisor = _row_statistics(mean, std, width, images.device)
    # By whole rows: broadcasting three numbers over a channels-last image is several times slower on a CPU.
    rows = images.permute(0, 2, 3, 1).reshape(n, height, width * channels)
    floats = rows.to(torch.float32).sub_(shift).div_(divisor)
    return floats.view(n, height, width, channels).permute(0, 3, 1, 2)


@functools.lru_cache
def _row_statistics(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    # Kept: making them anew would copy from the host, and so wait for the device, at every step.
    shift = torch.tensor(mean, device=device).mul(255).repeat(width)
    return shift, torch.tensor(std, device=device).mul(255).repeat(width)
