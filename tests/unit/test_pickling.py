from __future__ import annotations

import pickle
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from elastic_harness import pickling
from elastic_harness.errors import ConfigError
from recipes.digits_mlp.module import DigitsData, DigitsMLP


@pytest.fixture
def trainer() -> pl.Trainer:
    return pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def launch(trainer: pl.Trainer, model: Any, data: Any = None) -> bytes:
    return pickling.dumps(trainer, trainer._fit_impl, (model, None, None, data, None), {})


def test_dumps_when_all_pickles_then_parameters_are_copied_not_shared(trainer: pl.Trainer) -> None:
    model = DigitsMLP()
    _, function, args, _ = pickle.loads(launch(trainer, model, DigitsData()))
    assert function.__name__ == "_fit_impl"
    weight = next(args[0].parameters())
    assert not weight.is_shared()
    assert torch.equal(weight, next(model.parameters()))


def test_dumps_when_an_attribute_does_not_pickle_then_its_path_is_named(trainer: pl.Trainer) -> None:
    model = DigitsMLP()
    model.net[0].hook = lambda x: x
    with pytest.raises(ConfigError, match=r"^DigitsMLP.*\.hook \(a function\) cannot be sent to the workers"):
        launch(trainer, model)


def test_dumps_when_the_data_module_holds_an_open_file_then_it_is_named(trainer: pl.Trainer) -> None:
    data = DigitsData()
    with open(__file__) as file:  # noqa: PTH123
        data.cache = {"log": [file]}  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match=r"^DigitsData\.cache\['log'\].*TextIOWrapper"):
            launch(trainer, DigitsMLP(), data)


def test_dumps_when_a_callback_does_not_pickle_then_it_is_named(trainer: pl.Trainer) -> None:
    callback = pl.callbacks.LambdaCallback(on_train_start=lambda *_: None)
    trainer.callbacks.append(callback)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"callbacks.*on_train_start"):
        launch(trainer, DigitsMLP())
