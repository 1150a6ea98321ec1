"""What is saved loads again with weights_only=True, or is refused by name."""

from __future__ import annotations

import enum
import functools
import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import AttributeDict
from omegaconf import OmegaConf

from elastic_harness.checkpoint.plain_state import converted, refuse_what_does_not_load
from elastic_harness.errors import ConfigError


class Size(enum.IntEnum):
    SMALL = 1


class Shape(enum.Enum):
    ROUND = "round"


class Configured(pl.LightningModule):
    """Its hyperparameters are a configuration, or hold one."""

    def __init__(self, cfg: Any, within: bool) -> None:
        super().__init__()
        self.save_hyperparameters() if within else self.save_hyperparameters(cfg)
        self.layer = torch.nn.Linear(cfg.width, cfg["width"])


class Listed(pl.LightningModule):
    """Keeps parts of a configuration among its hyperparameters."""

    def __init__(self, widths: Any, root: Any = None, optimizer: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(widths[0], widths[1])


def reloaded(state: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def dumped(module: pl.LightningModule, path: Path) -> dict[str, Any]:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy._lightning_module = module
    trainer.strategy.connect(module)
    checkpoint = converted(trainer._checkpoint_connector.dump_checkpoint(weights_only=True))
    refuse_what_does_not_load(checkpoint)
    torch.save(checkpoint, path)
    return checkpoint


def test_converted_when_values_have_an_obvious_plain_form_then_they_get_it_c12() -> None:
    tensor = torch.ones(3)
    state = {
        "hyper_parameters": AttributeDict(
            widths=OmegaConf.create([1, {"deep": "${..0}"}]), root=Path("/data"), lr=np.float32(0.5), on=np.bool_(True)
        ),
        "tuple": (Size.SMALL, [np.int64(3)]),
        np.int64(7): tensor,
        "state_dict": OrderedDict(weight=tensor),
    }
    plain = converted(state)
    refuse_what_does_not_load(plain)
    assert reloaded(plain)["hyper_parameters"] == {
        "widths": [1, {"deep": 1}], "root": "/data", "lr": 0.5, "on": True
    }  # fmt: skip
    assert plain["tuple"] == (1, [3])
    assert type(plain["tuple"][0]) is int
    assert plain[7] is tensor  # not copied
    assert plain["state_dict"] is state["state_dict"]
    assert isinstance(state["hyper_parameters"]["root"], Path), "the module's own is left alone"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            {"hyper_parameters": {"optimizer": functools.partial(torch.optim.Adam, lr=1)}},
            ["hyper_parameters.optimizer", "functools.partial", 'save_hyperparameters(ignore=["optimizer"])'],
        ),
        ({"hyper_parameters": {"a": [1, {"shape": Shape.ROUND}]}}, ["hyper_parameters.a.1.shape", "Shape", '["a"]']),
        ({"callbacks": {"EMA": {"f": lambda: 0}}}, ["callbacks.EMA.f", "function", "store numbers"]),
        ({"random": np.ones(3)}, ["random in the checkpoint is a numpy.ndarray"]),
    ],
)
def test_refuse_when_something_does_not_load_again_then_key_type_and_fix_are_named_c12(
    state: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_what_does_not_load(converted({"weight": torch.ones(2), **state}))
    (problem,) = raised.value.problems
    for word in words:
        assert word in problem


def test_refuse_when_tensors_are_large_then_they_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda value, file: (save(value, file), sizes.append(file.tell())))
    refuse_what_does_not_load({"a": torch.ones(1_000_000), "b": OrderedDict(c=torch.nn.Parameter(torch.ones(10**6)))})
    assert sizes[0] < 10_000


def test_load_from_checkpoint_when_hyperparameters_were_converted_then_it_works_c12(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    cfg = OmegaConf.create({"width": 3, "net": {"depth": 2}})
    dumped(Configured(cfg, within=False), path)
    assert Configured.load_from_checkpoint(path, within=False).layer.in_features == 3
    dumped(Configured(cfg, within=True), path)  # a plain dictionary has no attributes
    assert Configured.load_from_checkpoint(path, cfg=cfg).layer.in_features == 3
    dumped(Listed(OmegaConf.create([3, 4]), Path("/data")), path)
    assert Listed.load_from_checkpoint(path).layer.out_features == 4
    with pytest.raises(ConfigError, match=r"hyper_parameters\.optimizer"):
        dumped(Listed([3, 4], optimizer=functools.partial(torch.optim.Adam)), path)
