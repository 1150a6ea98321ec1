from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastic_harness.events import Timeline
from elastic_harness.result import Result, finite, weights_sha256


def test_weights_sha256_when_anything_differs_then_so_does_the_hash() -> None:
    state = {"b": torch.ones(2, 3), "a": torch.arange(4), "c": torch.ones(2, dtype=torch.bfloat16)}
    same = {name: state[name].clone() for name in sorted(state)}
    assert weights_sha256(state) == weights_sha256(same)
    changed = {
        "value": {**state, "b": torch.full((2, 3), 1.0000001)},
        "shape": {**state, "b": torch.ones(3, 2)},
        "type": {**state, "a": torch.arange(4, dtype=torch.int32)},
        "name": {"z": state["b"], "a": state["a"], "c": state["c"]},
        "sign of zero": {**state, "b": torch.ones(2, 3) * -0.0},
    }
    hashes = {weights_sha256(other) for other in changed.values()} | {weights_sha256(state)}
    assert len(hashes) == len(changed) + 1


def test_weights_sha256_when_a_tensor_is_not_contiguous_or_a_scalar_then_its_values_count() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    assert weights_sha256({"a": matrix.T.contiguous().T}) == weights_sha256({"a": matrix})
    assert weights_sha256({"a": torch.tensor(1.0)}) != weights_sha256({"a": torch.tensor(2.0)})
    assert weights_sha256({"a": torch.empty(0)}) == weights_sha256({"a": torch.empty(0)})


def test_result_when_put_together_then_counts_over_all_starts_of_the_run(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl", "node0")
    for generation, restart, world_size in ((0, False, 2), (1, True, 2), (2, False, 3)):
        timeline.record("generation_started", generation=generation, step=0, world_size=world_size, restart=restart)
    timeline.record("resumed", generation=1, step=20, world_size=2, steps_lost=7)
    timeline.record("resumed", generation=2, step=40, world_size=3, steps_lost=0)
    for step, epoch, accuracy in ((23, 1, 0.4), (46, 2, 0.5)):
        metrics = finite({"val/acc": accuracy, "nan": float("nan")})
        timeline.record("evaluated", generation=2, step=step, world_size=3, epoch=epoch, metrics=metrics)
    timeline.record("run_started", generation=None, step=None, world_size=None)
    timeline.record("run_finished", generation=2, step=50, world_size=3, status="failed")
    result = Result.of("failed", "rank 1 raised", timeline, None)
    assert (result.generations, result.restarts, result.steps_lost) == (3, 1, 7)
    assert result.world_sizes == [2, 2, 3]
    assert result.weights_sha256 is None
    assert (result.step, result.epoch) == (50, 2)
    assert result.metrics == {"val/acc": 0.5, "nan": None}


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ([("run_started", "a", 100.0), ("checkpoint_saved", "a", 107.0), ("run_started", "a", 500.0),
          ("run_finished", "a", 502.0)], 9.0),
        ([("run_started", "a", 100.0), ("run_started", "b", 150.0), ("run_finished", "a", 200.0)], 100.0),
        ([("run_started", "a", 100.0), ("run_finished", "a", 110.0), ("run_started", "b", 150.0),
          ("run_finished", "b", 200.0)], 60.0),
    ],
    ids=["starts of one node", "a node joins", "another node goes on"],
)  # fmt: skip
def test_result_when_there_were_several_starts_then_their_seconds_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, str, float]], seconds: float
) -> None:
    for name, node, moment in events:
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        Timeline(tmp_path / "events.jsonl", node).record(name, generation=0, step=1, world_size=1)
    result = Result.of("finished", None, Timeline(tmp_path / "events.jsonl", "a"), None)
    assert result.wall_seconds == seconds
