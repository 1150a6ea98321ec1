"""From a file to RGB bytes: torchvision's decoders, and PIL for what those do not read.

Whatever the file is (gray, CMYK, palette, alpha, 16 bits, a PNG named ``.JPEG``), the result is uint8 RGB, as
``torchvision.datasets.ImageFolder`` would give it. An EXIF orientation is not applied: ImageFolder does not.

torchvision 0.29 deprecates its decoders in favour of torchcodec. They are used as long as that version is pinned:
torchcodec is one more compiled package that has to match torch.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode  # type: ignore[import-untyped]

# What PIL raises on damaged bytes, depending on the format and on where the damage is.
_PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error)


class UnreadableImageError(ValueError):
    """The bytes of a file are not an image, or are a damaged one.

    It takes one string, so that it keeps its type on its way out of a loader process. ``permanent`` says that
    another try would meet the same bytes: a restart policy that asks does not retry.
    """

    permanent = True


def read_rgb(path: str) -> Tensor:
    """Read one image file.

    Args:
        path: the file.

    Returns:
        uint8, shape ``(3, height, width)``.

    Raises:
        UnreadableImageError: the content is damaged; the path is in the message.
        OSError: the file itself cannot be read. That may pass, so it is never taken for a damaged image.
    """
    data = np.fromfile(path, dtype=np.uint8)
    try:
        # What torchvision.io.decode_image calls, without the time that its warning takes for every image.
        image: Tensor = torch.ops.image.decode_image(torch.from_numpy(data), ImageReadMode.RGB.value, False)
    except RuntimeError:
        return _read_with_pil(path, data)
    if image.dim() == 4:  # an animation; PIL shows its first frame too
        image = image[0]
    if image.dtype == torch.uint16:  # PNG keeps its 16 bits whatever the mode
        image = (image.to(torch.int32) >> 8).to(torch.uint8)
    return image


def _read_with_pil(path: str, data: NDArray[np.uint8]) -> Tensor:
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            if image.mode.startswith("I"):  # 16 bits; PIL's own conversion would clip at 255
                gray = (np.asarray(image).astype(np.int32) >> 8).astype(np.uint8)
                pixels = np.repeat(gray[:, :, None], 3, axis=2)
            else:
                pixels = np.array(image.convert("RGB"))
    except (*_PIL_ERRORS, Image.DecompressionBombError) as error:
        size = f"{data.size:,} bytes"
        raise UnreadableImageError(
            f"{path} ({size}) is not a readable image: repair or remove it, or set data.on_bad_image=skip."
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
