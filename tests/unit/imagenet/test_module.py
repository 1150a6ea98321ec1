"""The classifier on its own: what it is built of, and what may travel between processes."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from imagenet.module import ImageClassifier
from imagenet.schedule import warmup_cosine

SGD = partial(torch.optim.SGD, lr=0.1, weight_decay=1e-4)


def test_classifier_when_the_name_is_misspelt_then_names_key_value_and_neighbours() -> None:
    with pytest.raises(ValueError, match=r"model\.name=resnet81 is not .*did you mean .*resnet18.*list_models"):
        ImageClassifier("resnet81", 10)


def test_classifier_when_the_name_is_a_segmentation_model_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.name=fcn_resnet50 is not a torchvision classification model"):
        ImageClassifier("fcn_resnet50", 10)


def test_classifier_when_there_is_one_class_then_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"model\.num_classes=1 must be at least 2"):
        ImageClassifier("resnet18", 1)


def test_classifier_when_the_network_has_auxiliary_heads_then_still_returns_scores() -> None:
    model = ImageClassifier("googlenet", 3).train()
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


def test_optimizer_when_configured_then_norms_and_biases_are_not_decayed() -> None:
    model = ImageClassifier("resnet18", 10, optimizer=SGD)
    optimizer = model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    decayed, kept = optimizer.param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (1e-4, 0.0)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    expected = {p for norm in norms for p in norm.parameters()} | {model.get_parameter("model.fc.bias")}
    assert set(kept["params"]) == expected
    assert set(decayed["params"]) | expected == set(model.parameters())


def test_optimizer_when_there_is_none_then_training_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"optimizer is not set.*: choose one"):
        ImageClassifier("resnet18", 10).configure_optimizers()


@pytest.mark.parametrize("channels_last", [True, False])
def test_classifier_when_built_then_weights_have_the_asked_layout(channels_last: bool) -> None:
    weight = ImageClassifier("resnet18", 10, channels_last=channels_last).get_parameter("model.conv1.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_classifier_when_pickled_then_the_copy_has_the_same_weights_and_partials() -> None:
    model = ImageClassifier("resnet18", 10, optimizer=SGD, scheduler=partial(warmup_cosine, warmup_fraction=0.2))
    copy = pickle.loads(pickle.dumps(model))
    assert copy.optimizer.keywords == SGD.keywords
    assert copy.scheduler.func is warmup_cosine
    assert copy.hparams == model.hparams
    for one, other in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_checkpoint_when_loaded_with_weights_only_then_the_classifier_comes_back(tmp_path: Path) -> None:
    model = ImageClassifier("resnet18", 7, optimizer=SGD, label_smoothing=0.1, channels_last=False)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    path = tmp_path / "model.ckpt"
    trainer.save_checkpoint(path, weights_only=True)
    state = torch.load(path, weights_only=True)
    assert state["hyper_parameters"] == {
        "name": "resnet18",
        "num_classes": 7,
        "label_smoothing": 0.1,
        "channels_last": False,
    }
    copy = ImageClassifier.load_from_checkpoint(path, weights_only=True)
    assert copy.num_classes == 7
    assert copy.optimizer is None
    assert torch.equal(copy.get_parameter("model.fc.weight"), model.get_parameter("model.fc.weight"))


@pytest.mark.parametrize(("classes", "expected"), [(10, 0.75), (3, 1.0)])
def test_top5_when_there_are_fewer_than_five_classes_then_all_of_them_count(classes: int, expected: float) -> None:
    model = ImageClassifier("resnet18", classes)
    scores = torch.arange(classes, 0, -1).float().expand(4, classes)  # class 0 is best, the last is worst
    labels = torch.tensor([0, 1, 2, classes - 1])
    model.val_top1.update(scores, labels)
    model.val_top5.update(scores, labels)
    assert model.val_top1.compute() == 0.25
    assert model.val_top5.compute() == expected
