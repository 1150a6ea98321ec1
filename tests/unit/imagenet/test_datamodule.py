"""The datamodule before and beside training: checks, batches, unreadable files."""

from __future__ import annotations

import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from imagenet.datamodule import ImageNetDataModule
from imagenet.decode import UnreadableImageError
from imagenet.module import ImageClassifier

SETTINGS: dict[str, Any] = {"batch_size": 2, "num_workers": 0, "image_size": 16, "resize_size": 20}

pytestmark = pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding capabilities of TorchVision are deprecated:DeprecationWarning"
)


@pytest.fixture(scope="module")
def model() -> ImageClassifier:
    return ImageClassifier("resnet18", 2)


def checked(root: Path, model: ImageClassifier, **settings: Any) -> ImageNetDataModule:
    data = ImageNetDataModule(root, **SETTINGS | settings)
    data.check(model)
    return data


def damage(*paths: Path) -> None:
    for path in paths:
        path.write_bytes(path.read_bytes()[:200])


def test_values_when_several_are_impossible_then_all_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size=0 must be at least 1") as caught:
        ImageNetDataModule(
            "/data",
            batch_size=0,
            num_workers=-1,
            image_size=224,
            resize_size=200,
            scale=[0.5, 0.1],
            mean=[0.5],
            std=[0.1, 0.0, 0.1],
            on_bad_image="ignore",
        )
    keys = ["batch_size=0", "num_workers=-1", "resize_size=200", "scale=", "mean=", "std=", "on_bad_image=ignore"]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(keys)
    assert all(line.startswith(f"data.{key}") for line, key in zip(lines, keys, strict=True))


def test_root_when_not_set_then_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"data\.root is not set"):
        ImageNetDataModule()


def test_check_when_the_root_is_missing_then_says_what_to_set_d05(tmp_path: Path, model: ImageClassifier) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.root=.*/nowhere does not exist: set data\.root to"):
        ImageNetDataModule(tmp_path / "nowhere").check(model)


def test_check_when_the_head_is_wrong_then_names_both_numbers_and_the_key_d05(root: Path) -> None:
    head = ImageClassifier("resnet18", 5)
    with pytest.raises(ValueError, match=r"model\.num_classes=5 must equal the 2 classes .* set model\.num_classes=2"):
        checked(root, head)
    with pytest.raises(
        ValueError, match=r"model\.num_classes=5 and data\.num_classes=5 must equal the 2 .* set data\.num_classes=2,"
    ):
        checked(root, head, num_classes=5)


def test_check_when_a_class_is_missing_in_val_then_names_it_d05(root: Path, model: ImageClassifier) -> None:
    for image in (root / "val" / "dog").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match="no image in val/dog"):
        checked(root, model)
    (root / "val" / "dog").rmdir()
    with pytest.raises(ValueError, match="dog in train/ but not in val/"):
        checked(root, model)


def test_check_when_the_tree_is_big_then_takes_seconds_and_opens_no_file(tmp_path: Path) -> None:
    for split, count in (("train", 400), ("val", 5)):
        for label in range(50):
            folder = tmp_path / split / f"n{label:08d}"
            folder.mkdir(parents=True)
            for index in range(count):
                (folder / f"{index}.JPEG").touch()  # empty: opening one would fail
    start = time.monotonic()
    data = checked(tmp_path, ImageClassifier("resnet18", 50))
    assert time.monotonic() - start < 2  # 20,250 files; the bar is 10 s for 1.3 million
    assert "50 classes, 20,000 training and 250 validation images" in data.description


def test_description_when_checked_then_counts_what_is_there(root: Path, model: ImageClassifier) -> None:
    assert ImageNetDataModule(root).description == f"ImageNet-style folder {root}"
    assert checked(root, model).description == (
        f"ImageNet-style folder {root}: 2 classes, 8 training and 4 validation images"
    )


def test_loaders_when_iterated_then_yield_byte_images_and_labels(root: Path, model: ImageClassifier) -> None:
    data = checked(root, model)
    batches = [*data.train_dataloader(), *data.val_dataloader(), *data.test_dataloader()]
    assert len(batches) == 4 + 2 + 2
    for images, labels in batches:
        assert (images.shape, images.dtype) == ((2, 3, 16, 16), torch.uint8)
        assert labels.dtype == torch.int64
    assert isinstance(data.val_dataloader().sampler, SequentialSampler)
    assert sorted(int(label) for _, labels in batches[:4] for label in labels) == [0] * 4 + [1] * 4


def test_datamodule_when_checked_and_pickled_then_the_copy_does_not_list_again(
    root: Path, model: ImageClassifier
) -> None:
    copy = pickle.loads(pickle.dumps(checked(root, model)))
    copy.root = Path("/nowhere")
    copy.setup("fit")
    assert len(copy.train_dataloader().dataset) == 8


def test_batch_when_transferred_then_is_normalised_and_skipped_paths_become_a_number(root: Path) -> None:
    data = ImageNetDataModule(root, on_bad_image="skip", **SETTINGS)
    images = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)
    labels = torch.zeros(2, dtype=torch.int64)
    result, _, skipped = data.on_after_batch_transfer((images, labels, ("a.jpg",)), 0)
    assert skipped == 1
    assert result[0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)
    assert len(data.on_after_batch_transfer((images, labels), 0)) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_when_a_file_is_broken_and_policy_fail_then_the_error_names_it_d03(
    root: Path, model: ImageClassifier, num_workers: int
) -> None:
    bad = root / "train" / "dog" / "1.jpg"
    damage(bad)
    data = checked(root, model, num_workers=num_workers)
    with pytest.raises(UnreadableImageError) as caught:
        list(data.train_dataloader())
    assert str(bad) in str(caught.value).splitlines()[-1]


def test_training_when_files_are_broken_and_policy_skip_then_steps_stay_the_same_d03(
    root: Path, model: ImageClassifier, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [root / "train" / "dog" / "3.jpg", root / "train" / "cat" / "0.jpg"]
    damage(*bad)
    data = checked(root, model, on_bad_image="skip")
    loader = data.train_dataloader()
    with caplog.at_level(logging.WARNING):
        epochs = [list(loader), list(loader)]
    for batches in epochs:
        assert [len(labels) for _, labels, _ in batches] == [2, 2, 2, 2]
        assert sorted(path for *_, paths in batches for path in paths) == sorted(map(str, bad))
    for path in bad:  # once, not once an epoch
        assert sum(str(path) in record.getMessage() for record in caplog.records) == 1


def test_validation_when_files_are_broken_and_policy_skip_then_they_are_left_out_d03(
    root: Path, model: ImageClassifier
) -> None:
    damage(root / "val" / "cat" / "0.jpg", root / "val" / "cat" / "1.jpg", root / "val" / "dog" / "0.jpg")
    data = checked(root, model, on_bad_image="skip")
    batches = list(data.val_dataloader())
    assert [(images.shape[0], len(labels), len(paths)) for images, labels, paths in batches] == [(0, 0, 2), (1, 1, 1)]
    assert batches[0][0].shape == (0, 3, 16, 16)


def test_batches_when_more_distinct_files_are_broken_than_allowed_then_fail_d03(root: Path) -> None:
    data = ImageNetDataModule(root, on_bad_image="skip", max_bad_images=1, **SETTINGS)
    images, labels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    for _ in range(3):
        data.on_after_batch_transfer((images, labels, ("a.jpg",)), 0)
    with pytest.raises(UnreadableImageError, match=r"data\.max_bad_images=1: 2 unreadable images.* b\.jpg"):
        data.on_after_batch_transfer((images, labels, ("b.jpg",)), 0)


@pytest.mark.parametrize("cap", [3, 1000])
def test_training_when_no_file_is_readable_then_the_search_ends_d03(
    root: Path, model: ImageClassifier, cap: int
) -> None:
    damage(*(root / "train").rglob("*.jpg"))
    data = checked(root, model, on_bad_image="skip", max_bad_images=cap)
    with pytest.raises(UnreadableImageError, match=rf"data\.max_bad_images={cap}: {min(cap + 1, 8)} unreadable"):
        list(data.train_dataloader())
