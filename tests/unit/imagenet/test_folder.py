"""Listing: what is an image, what is a class, in which order."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

from torchvision.datasets import ImageFolder

from imagenet.folder import class_problems, layout_problems, list_split


def test_list_split_when_compared_with_image_folder_then_has_the_same_samples(root: Path) -> None:
    (root / "train" / "cat" / "more").mkdir()
    shutil.copy(root / "train" / "cat" / "0.jpg", root / "train" / "cat" / "more" / "n.JPEG")
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    split = list_split(root / "train")
    reference = ImageFolder(root / "train")
    assert list(split.classes) == reference.classes
    assert sorted((split.path(i), split.label(i)) for i in range(len(split))) == sorted(reference.samples)


def test_list_split_when_listed_twice_then_is_in_the_same_sorted_order(root: Path) -> None:
    split = list_split(root / "train")
    paths = [split.path(i) for i in range(len(split))]
    assert paths == sorted(paths)
    assert split.labels.tolist() == [0] * 4 + [1] * 4


def test_list_split_when_hidden_folders_lie_about_then_labels_do_not_shift_d05(root: Path) -> None:
    for name in (".ipynb_checkpoints", "lost+found"):
        shutil.copytree(root / "train" / "cat", root / "train" / name)
    shutil.copy(root / "train" / "cat" / "0.jpg", root / "train" / "cat" / "._0.jpg")
    split = list_split(root / "train")
    assert split.classes == ("cat", "dog")
    assert len(split) == 8


def test_list_split_when_names_are_not_ascii_then_paths_survive_pickling(root: Path) -> None:
    (root / "train" / "dog").rename(root / "train" / "chien né")
    (root / "train" / "chien né" / "0.jpg").rename(root / "train" / "chien né" / "ø b.jpg")
    split = pickle.loads(pickle.dumps(list_split(root / "train")))
    assert all(Path(split.path(i)).is_file() for i in range(len(split)))


def test_layout_problems_when_the_root_is_wrong_then_name_key_value_and_fix_d05(root: Path) -> None:
    assert layout_problems(root) == []
    missing = root / "nowhere"
    expected = f"data.root={missing} does not exist: set data.root to a folder that holds train/ and val/."
    assert layout_problems(missing) == [expected]
    shutil.rmtree(root / "val")
    assert f"data.root={root} has no val/ (it holds train)" in layout_problems(root)[0]
    shutil.rmtree(root / "train")
    assert f"data.root={root} has no train/ and val/ (it holds nothing)" in layout_problems(root)[0]


def _problems(root: Path) -> list[str]:
    return class_problems(root, list_split(root / "train"), list_split(root / "val"))


def test_class_problems_when_the_splits_agree_then_there_are_none(root: Path) -> None:
    assert _problems(root) == []


def test_class_problems_when_val_lacks_a_class_then_name_it_d05(root: Path) -> None:
    shutil.rmtree(root / "val" / "dog")
    (problem,) = _problems(root)
    assert "dog in train/ but not in val/" in problem


def test_class_problems_when_val_has_one_more_class_then_name_it_d05(root: Path) -> None:
    shutil.copytree(root / "val" / "dog", root / "val" / "fox")
    (problem,) = _problems(root)
    assert "fox in val/ but not in train/" in problem


def test_class_problems_when_classes_are_empty_then_name_all_of_them_d05(root: Path) -> None:
    for folder in (root / "train" / "cat", root / "val" / "dog"):
        shutil.rmtree(folder)
        folder.mkdir()
    first, second = _problems(root)
    assert "no image in train/cat" in first
    assert "no image in val/dog" in second


def test_class_problems_when_there_is_no_class_folder_then_say_where_images_belong_d05(root: Path) -> None:
    for name in ("cat", "dog"):
        shutil.rmtree(root / "train" / name)
    (problem,) = _problems(root)
    assert "train/ has no class folder" in problem


def test_class_problems_when_many_classes_differ_then_the_message_stays_short(root: Path) -> None:
    for index in range(100):
        shutil.copytree(root / "val" / "dog", root / "val" / f"extra{index:03d}")
    (problem,) = _problems(root)
    assert "extra004 and 95 more in val/" in problem
