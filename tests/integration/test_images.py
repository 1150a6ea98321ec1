"""The ImageNet path through real runs: broken files, folders that do not fit, two steps of every experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.io import encode_jpeg

from tests.integration import sample_data
from tests.integration.conftest import PROJECT, Run

SMALL = ("data=imagenet", "data.image_size=32", "data.resize_size=32", "data.num_workers=1", "data.batch_size=4")
ONE_EPOCH = ("trainer.max_epochs=1",)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes of 20 training and 4 validation images of random bytes."""
    noise = torch.Generator().manual_seed(0)
    for split, count in (("train", 20), ("val", 4)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                image = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=noise)
                (folder / f"{number:02d}.jpg").write_bytes(bytes(encode_jpeg(image).tolist()))
    return tmp_path / "images"


@pytest.fixture
def train(start: Callable[..., Run], tree: Path) -> Callable[..., Run]:
    def train(*overrides: str) -> Run:
        return start(
            *SMALL, f"data.root={tree}", "data.num_classes=2", *ONE_EPOCH, *overrides, experiment="imagenet_elastic"
        )

    return train


def damage(tree: Path, *names: str) -> list[str]:
    paths = [tree / name for name in names]
    for path in paths:
        path.write_bytes(path.read_bytes()[:100])
    return [str(path) for path in paths]


def test_run_when_a_file_is_broken_then_one_attempt_and_its_path_in_the_last_lines_d03(
    train: Callable[..., Run], tree: Path
) -> None:
    (broken,) = damage(tree, "train/dog/07.jpg")
    run = train()
    run.finish(code=1)
    assert run.result["generations"] == 1
    assert any(broken in line for line in run.stderr.splitlines()[-3:])


def test_run_when_broken_files_are_skipped_then_finishes_and_counts_them_d03(
    train: Callable[..., Run], tree: Path
) -> None:
    damage(tree, "train/dog/07.jpg", "train/cat/00.jpg")
    run = train("data.on_bad_image=skip")
    run.finish()
    assert run.result["metrics"]["data/skipped_images"] == 2
    assert "data/skipped_images 2" in run.stdout
    assert run.result["restarts"] == 0


def test_run_when_more_files_are_broken_than_allowed_then_fails_with_the_key_d03(
    train: Callable[..., Run], tree: Path
) -> None:
    damage(tree, *(f"train/dog/{number:02d}.jpg" for number in range(10)))
    run = train("data.on_bad_image=skip", "data.max_bad_images=2")
    run.finish(code=1)
    assert "data.max_bad_images=2" in "\n".join(run.stderr.splitlines()[-3:])
    assert run.result["generations"] == 1


def test_run_when_there_are_hidden_folders_then_they_are_no_classes_d05(train: Callable[..., Run], tree: Path) -> None:
    for name in ("train/.ipynb_checkpoints", "val/.ipynb_checkpoints", "train/lost+found", "val/lost+found"):
        (tree / name).mkdir()
    run = train()
    run.finish()
    assert "2 classes, 40 training and 8 validation images" in run.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("empty", "dog"),
        ("missing", "dog"),
        ("extra", "emu"),
        ("head", "data.num_classes=3"),
        ("gone", "does not exist"),
    ],
)
def test_run_when_the_folder_does_not_fit_then_exit_code_2_and_no_worker_d05(
    train: Callable[..., Run], tree: Path, change: str, words: str
) -> None:
    more: list[str] = []
    if change in ("empty", "missing"):
        for path in (tree / "val" / "dog").iterdir():
            path.unlink()
    if change == "missing":
        (tree / "val" / "dog").rmdir()
    if change == "extra":
        (tree / "val" / "emu").mkdir()
        (tree / "val" / "cat" / "00.jpg").rename(tree / "val" / "emu" / "00.jpg")
    if change == "head":
        more = ["data.num_classes=3"]
    if change == "gone":
        more = [f"data.root={tree}/nowhere"]
    run = train(*more)
    run.finish(code=2)
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    assert not run.folder.exists()


EXPERIMENTS = sorted(path for folder in ("conf", "recipes") for path in (PROJECT / folder).rglob("experiment/*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiment_when_run_for_two_steps_then_finishes(
    start: Callable[..., Run], tree: Path, tmp_path: Path, experiment: Path
) -> None:
    images = []
    if "override /data: imagenet\n" in experiment.read_text():
        images = [f"data.root={tree}", "data.num_classes=2", "data.num_workers=0"]
    elif "root: ???" in experiment.read_text():
        make = {"fashion_mnist_cnn": sample_data.fashion_mnist, "cifar_resnet": sample_data.cifar10}[experiment.stem]
        images = [f"data.root={make(tmp_path)}"]
    run = start(
        *ONE_EPOCH,
        "trainer.accelerator=cpu",
        "trainer.limit_train_batches=2",
        "trainer.limit_val_batches=1",
        "data.batch_size=2",
        *images,
        experiment=experiment.stem,
    )
    run.finish()
    assert run.result["step"] == 2
