"""The digit scans: written once, whole, by whoever comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagenet.digits import write_digits
from imagenet.folder import list_split
from imagenet.module import ImageClassifier
from imagenet.sample import ImageNetSampleDataModule

SETTINGS: dict[str, Any] = {"num_classes": 10, "num_workers": 0, "image_size": 32, "resize_size": 32, "flip": False}

pytestmark = pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding capabilities of TorchVision are deprecated:DeprecationWarning"
)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_check_when_the_sample_is_not_there_then_writes_1797_scans_once(tmp_path: Path) -> None:
    data = ImageNetSampleDataModule(tmp_path / "digits", **SETTINGS)
    data.check(ImageClassifier("resnet18", 10))
    train, val = list_split(tmp_path / "digits" / "train"), list_split(tmp_path / "digits" / "val")
    assert (len(train), len(val)) == (1500, 297)
    assert train.classes == val.classes == tuple("0123456789")
    first = Path(train.path(0))
    written = first.stat().st_mtime_ns
    data.prepare_data()
    assert first.stat().st_mtime_ns == written
    assert names(tmp_path) == ["digits"]  # no draft is left behind
    images, labels = next(iter(data.val_dataloader()))
    assert images.shape == (32, 3, 32, 32)
    assert labels.tolist() == sorted(labels.tolist())


def test_sample_when_two_processes_write_at_once_then_both_succeed(tmp_path: Path) -> None:
    program = "import sys, pathlib, imagenet.digits as d; d.write_digits(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path / "deep" / "digits")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, b"")
    assert len(list_split(tmp_path / "deep" / "digits" / "train")) == 1500
    assert names(tmp_path / "deep") == ["digits"]


def test_sample_when_another_process_finishes_first_then_its_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "digits"

    def slower(draft: Path) -> None:
        (draft / "train").mkdir()
        (root / "train").mkdir(parents=True)
        (root / "train" / "first").touch()

    monkeypatch.setattr("imagenet.digits._write_images", slower)
    write_digits(root)
    assert names(root / "train") == ["first"]
    assert names(tmp_path) == ["digits"]


def test_sample_when_the_folder_cannot_be_written_then_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"data\.root=.*/file/digits: the digit scans cannot be written .*set data\.root"
    ):
        write_digits(tmp_path / "file" / "digits")


def test_sample_when_root_is_not_set_then_lives_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = ImageNetSampleDataModule(**SETTINGS)
    assert data.root == tmp_path / "elastic-harness" / "digits-v1"
    assert data.description == (
        "1,797 digit scans from scikit-learn "
        "(a stand-in for ImageNet; data=imagenet data.root=... trains on the real thing)"
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert ImageNetSampleDataModule(**SETTINGS).root == Path("/home/user/.cache/elastic-harness/digits-v1")
