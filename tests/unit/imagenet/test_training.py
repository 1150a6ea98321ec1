"""Module and datamodule together under a plain Lightning Trainer, without the harness."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from imagenet.datamodule import ImageNetDataModule
from imagenet.decode import UnreadableImageError
from imagenet.module import ImageClassifier
from imagenet.sample import ImageNetSampleDataModule
from imagenet.schedule import warmup_cosine
from tests.unit.imagenet.test_datamodule import damage

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:The image decoding and encoding capabilities of TorchVision are deprecated:DeprecationWarning"
    ),
    # Lightning's own: its use of a deprecated torch class, and advice for bigger data than a test has.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]

SETTINGS: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "image_size": 32, "resize_size": 32}


def trainer(**arguments: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )


def classifier(num_classes: int) -> ImageClassifier:
    return ImageClassifier(
        "resnet18", num_classes, optimizer=partial(torch.optim.SGD, lr=0.01), scheduler=partial(warmup_cosine)
    )


def test_fit_when_run_on_the_sample_then_validates_and_tests(tmp_path: Path) -> None:
    data = ImageNetSampleDataModule(tmp_path / "digits", num_classes=10, flip=False, **SETTINGS)
    model = classifier(10)
    run = trainer(fast_dev_run=2)
    run.fit(model, data)
    assert {"train/loss", "val/loss", "val/top1", "val/top5"} <= set(run.callback_metrics)
    assert run.callback_metrics["val/top5"] >= run.callback_metrics["val/top1"]
    (result,) = run.test(model, data, verbose=False)
    assert set(result) == {"test/loss", "test/top1", "test/top5"}


def test_fit_when_run_then_the_schedule_spans_the_run_by_optimizer_step(root: Path) -> None:
    model = classifier(2)
    run = trainer(max_epochs=3)
    run.fit(model, ImageNetDataModule(root, **SETTINGS))
    (config,) = run.lr_scheduler_configs
    assert config.interval == "step"
    assert config.scheduler.last_epoch == run.global_step == 6
    assert config.scheduler.get_last_lr() == pytest.approx([0.0, 0.0])


def test_fit_when_the_run_has_no_end_then_names_the_keys(root: Path) -> None:
    with pytest.raises(ValueError, match=r"set trainer\.max_epochs or trainer\.max_steps"):
        trainer(max_epochs=-1).fit(classifier(2), ImageNetDataModule(root, **SETTINGS))


def test_fit_when_the_head_is_wrong_then_stops_before_training_d05(root: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.num_classes=10 must equal the 2 classes"):
        trainer(max_epochs=1).fit(classifier(10), ImageNetDataModule(root, **SETTINGS))


def test_fit_when_a_file_is_broken_and_policy_fail_then_names_it_d03(root: Path) -> None:
    bad = root / "train" / "cat" / "2.jpg"
    damage(bad)
    with pytest.raises(UnreadableImageError) as caught:
        trainer(max_epochs=1).fit(classifier(2), ImageNetDataModule(root, **SETTINGS | {"num_workers": 1}))
    assert str(bad) in str(caught.value).splitlines()[-1]


def test_fit_when_files_are_broken_and_policy_skip_then_finishes_and_counts_them_d03(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(root / "train" / "cat" / "2.jpg", root / "train" / "dog" / "1.jpg", root / "val" / "dog" / "0.jpg")
    log = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    log.addHandler(caplog.handler)
    try:
        run = trainer(max_epochs=2)
        run.fit(classifier(2), ImageNetDataModule(root, on_bad_image="skip", **SETTINGS))
    finally:
        log.removeHandler(caplog.handler)
    assert run.global_step == 4
    assert run.callback_metrics["data/skipped_images"] == 2
    assert run.callback_metrics["data/skipped_val_images"] == 1
    assert "3 images skipped as unreadable in the last epoch: 2 of training, 1 of validation." in caplog.text


def test_validate_when_a_whole_batch_was_skipped_then_the_rest_still_counts_d03(root: Path) -> None:
    damage(*(root / "val" / "cat").iterdir())
    data = ImageNetDataModule(root, on_bad_image="skip", **SETTINGS | {"batch_size": 2})
    (result,) = trainer().validate(classifier(2), data, verbose=False)
    assert result["val/top1"] in (0.0, 0.5, 1.0)
    assert result["val/loss"] > 0
