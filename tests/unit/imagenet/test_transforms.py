"""Crops, and normalisation."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from imagenet.transforms import TrainTransform, eval_transform, normalise


def image(height: int = 60, width: int = 80) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
    return pixels.permute(2, 0, 1)  # as decoders return it


# The long ones with crops of nearly all of their area: none fits, and a centre is taken.
@pytest.mark.parametrize(
    ("size", "scale"),
    [((60, 80), (0.08, 1.0)), ((20, 200), (0.9, 1.0)), ((200, 20), (0.9, 1.0)), ((9, 7), (0.08, 1.0))],
)
def test_train_transform_when_seeded_then_equals_torchvisions_random_resized_crop(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    pixels = image(*size)
    ours = TrainTransform(32, scale, flip=False)
    theirs = v2.RandomResizedCrop(32, scale=scale, antialias=True)
    for seed in range(50):
        torch.manual_seed(seed)
        crop = ours(pixels)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(crop, theirs(pixels))
        assert torch.equal(state, torch.get_rng_state())


def test_train_transform_when_it_flips_then_half_of_the_images_are_mirrored() -> None:
    transform = TrainTransform(16, (1.0, 1.0), flip=True)
    square = image(16, 16)
    torch.manual_seed(0)
    crops = [transform(square) for _ in range(200)]
    mirrored = sum(torch.equal(crop, square.flip(-1)) for crop in crops)
    assert 70 < mirrored < 130
    assert mirrored + sum(torch.equal(crop, square) for crop in crops) == 200


def test_eval_transform_when_applied_then_takes_the_centre_of_the_resized_image() -> None:
    result = eval_transform(24, 30)(image(60, 80))
    expected = v2.functional.center_crop(v2.functional.resize(image(60, 80), [30], antialias=True), [24])
    assert result.dtype == torch.uint8
    assert torch.equal(result, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalise_when_given_bytes_then_equals_the_usual_arithmetic(layout: torch.memory_format) -> None:
    images = torch.stack([image(), image().flip(-1)]).contiguous(memory_format=layout)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = v2.functional.normalize(images.float() / 255, list(mean), list(std))
    result = normalise(images, mean, std)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected)


def test_normalise_when_the_batch_is_empty_then_stays_empty() -> None:
    empty = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert normalise(empty, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).shape == (0, 3, 8, 8)
