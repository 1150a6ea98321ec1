from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_harness.checkpoint.fingerprint import compare, fingerprint_of
from elastic_harness.errors import ConfigError

CONFIG: dict[str, Any] = {
    "run_id": "a",
    "seed": 42,
    "model": {"_target_": "m.Model", "widths": [3, 4], "net": {"depth": 2}, "fill": float("nan")},
    "data": {"_target_": "d.Data", "root": "/data/a", "batch_size": 8, "num_workers": 2},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "scheduler": None,
    "elastic": {"logical_world_size": 4, "nproc_per_node": 2},
    "trainer": {"max_epochs": 3, "accelerator": "cpu", "precision": "32-true"},
    "logger": {"save_dir": "/runs/a"},
    "checkpoint": {"every_n_steps": 5},
}


def changed(key: str, value: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(CONFIG))
    node = config
    *groups, name = key.split(".")
    for group in groups:
        node = node[group]
    node[name] = value
    return fingerprint_of(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("seed", 43), ("model.net.depth", 3), ("model.widths", [3, 5]), ("model.new", 1), ("data.batch_size", 9)],
        *[("optimizer.lr", 0.2), ("optimizer", None), ("scheduler", {"_target_": "s.S"})],
        *[("elastic.logical_world_size", 5), ("trainer.precision", "bf16-mixed"), ("trainer.gradient_clip_val", 1.0)],
    ],
)
def test_compare_when_what_defines_the_result_differs_then_the_keys_are_shown_c14(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)/here.*\n  {key}.* -> .*\n.*resume=force") as raised:
        compare(json.loads(json.dumps(fingerprint_of(CONFIG))), changed(key, value), "/here")
    assert raised.value.problems[0].count(" -> ") == (2 if key == "optimizer" else 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("trainer.max_epochs", 4), ("trainer.accelerator", "gpu"), ("elastic.nproc_per_node", 1), ("run_id", "b")],
        *[("data.root", "/data/b"), ("data.num_workers", 0), ("logger", None), ("checkpoint.every_n_steps", 6)],
        *[("scheduler", {}), ("model.new", None)],
    ],
)
def test_compare_when_only_length_or_place_differ_then_the_run_goes_on_c14(key: str, value: Any) -> None:
    compare(json.loads(json.dumps(fingerprint_of(CONFIG))), changed(key, value), "/here")


def test_fingerprint_when_there_is_no_configuration_then_the_logical_ranks_are_known() -> None:
    assert fingerprint_of({"elastic": {"logical_world_size": 4, "num_threads": 1}}) == {"elastic.logical_world_size": 4}
