"""Every kind of image file becomes uint8 RGB, with the pixels that PIL sees."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from imagenet.decode import UnreadableImageError, read_rgb
from tests.unit.imagenet.conftest import picture

pytestmark = pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding capabilities of TorchVision are deprecated:DeprecationWarning"
)


def _palette_with_transparency(path: Path) -> None:
    picture().convert("P").save(path, "PNG", transparency=3)


def _broken_exif(path: Path) -> None:
    picture().save(path, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff broken")


def _rotated_by_exif(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: ImageFolder does not apply it
    picture().save(path, "JPEG", exif=exif)


KINDS: dict[str, Callable[[Path], None]] = {
    "rgb.jpg": lambda path: picture().save(path),
    "gray.jpg": lambda path: picture().convert("L").save(path),
    "cmyk.jpg": lambda path: picture().convert("CMYK").save(path),
    "palette.png": lambda path: picture().convert("P").save(path),
    "palette_transparent.png": _palette_with_transparency,
    "rgba.png": lambda path: picture().convert("RGBA").save(path),
    "gray_alpha.png": lambda path: picture().convert("LA").save(path),
    "bilevel.png": lambda path: picture().convert("1").save(path),
    "png_named.JPEG": lambda path: picture().save(path, "PNG"),
    "jpeg_named.png": lambda path: picture().save(path, "JPEG"),
    "gif_named.jpg": lambda path: picture().save(path, "GIF"),
    "broken_exif.jpg": _broken_exif,
    "rotated.jpg": _rotated_by_exif,
    "image.webp": lambda path: picture().save(path),
    "image.bmp": lambda path: picture().save(path),
    "image.tiff": lambda path: picture().save(path),
    "image.ppm": lambda path: picture().save(path),
    "gray.pgm": lambda path: picture().convert("L").save(path),
    "cmyk.tiff": lambda path: picture().convert("CMYK").save(path),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
@pytest.mark.parametrize("name", KINDS)
def test_read_rgb_when_the_file_is_of_any_kind_then_equals_pil(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    KINDS[name](path)
    image = read_rgb(str(path))
    with Image.open(path) as reference:
        expected = np.asarray(reference.convert("RGB"))
    assert image.dtype == torch.uint8
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("name", ["deep.png", "deep.tiff", "deep.pgm"])
def test_read_rgb_when_the_file_has_16_bits_then_keeps_the_upper_8(tmp_path: Path, name: str) -> None:
    gray = np.asarray(picture().convert("L"))
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / name)
    image = read_rgb(str(tmp_path / name))
    assert image.dtype == torch.uint8
    assert all(np.array_equal(channel.numpy(), gray) for channel in image)


def test_read_rgb_when_an_animation_then_returns_its_first_frame(tmp_path: Path) -> None:
    path = tmp_path / "animation.jpg"
    picture(1).save(path, "GIF", save_all=True, append_images=[picture(2)])
    assert read_rgb(str(path)).shape == (3, 40, 48)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_read_rgb_when_the_file_is_cut_off_then_names_its_path_d03(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"broken{suffix}"
    picture().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(UnreadableImageError) as caught:
        read_rgb(str(path))
    assert str(caught.value).startswith(f"{path} (")
    assert "data.on_bad_image=skip" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_read_rgb_when_the_file_is_text_then_names_its_path_d03(tmp_path: Path) -> None:
    path = tmp_path / "page.jpg"
    path.write_text("<html>404</html>")
    with pytest.raises(UnreadableImageError, match=r"page\.jpg"):
        read_rgb(str(path))


def test_read_rgb_when_the_file_is_gone_then_it_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        read_rgb(str(tmp_path / "gone.jpg"))
