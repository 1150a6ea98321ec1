from __future__ import annotations

import pytest
import torch

from elastic_harness.exact import pace
from elastic_harness.exact.pace import Pace


def test_pace_when_steps_are_measured_then_the_mean_by_rank_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    measured = Pace(torch.device("cpu"))
    for seconds, parts in ((2.0, 1), (6.0, 3)):
        now[0] += 100.0  # a validation, which is not counted
        measured.begin()
        now[0] += seconds
        measured.end(parts)
        assert measured.seconds == 2.0
    measured.hear([1.0, 4.0])
    measured.hear([2.0, 4.0])
    assert measured.take() == [1.5, 4.0]
    assert measured.take() == []
