"""The benchmarks of whole runs: that they start, read a trace rightly, and compare like with like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


def config(option: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((PROJECT / "conf" / f"{option}.yaml").read_text())
    return content


@pytest.mark.parametrize(
    "script", ["restart", "cold_start", "step_time", "all_reduce", "rescue", "nodes", "rendezvous"]
)
def test_benchmark_when_asked_for_help_then_explains_itself(script: str) -> None:
    command = [sys.executable, str(PROJECT / "benchmarks" / f"{script}.py"), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"python benchmarks/{script}.py" in result.stdout
    assert "(default: " in result.stdout


def test_trace_when_a_line_is_half_written_then_reads_the_others(tmp_path: Path) -> None:
    from peers import trace

    path = tmp_path / "trace.txt"
    assert trace.read(path) == []
    steps = [trace.Step(1700000000.123456, 0, 71, 1), trace.Step(1700000000.2, 1, 72, 1)]
    for step in steps:
        trace.append(path, step)
    with path.open("a") as file:
        file.write("17000")
    assert trace.read(path) == steps


def test_plain_lightning_when_compared_with_the_experiment_then_trains_the_same() -> None:
    from peers import plain_lightning as peer

    data = config("data/imagenet_sample")
    sides = {
        "data": (peer.DATA, data),
        "model": (peer.MODEL, config("model/resnet18") | {"num_classes": data["num_classes"]}),
        "optimizer": (peer.OPTIMIZER, config("optimizer/sgd")),
        "scheduler": (peer.SCHEDULER, config("scheduler/cosine")),
    }
    for group, (theirs, ours) in sides.items():
        chosen = {key: value for key, value in ours.items() if not key.startswith("_") and key != "root"}
        assert theirs == chosen, group
    trainer = config("trainer/default") | {"accelerator": "cpu"}  # as both commands say
    assert {key: trainer[key] for key in peer.TRAINER} == peer.TRAINER
