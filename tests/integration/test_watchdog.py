"""Workers that stand still are found; those that are only slow are left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Run


def test_run_when_first_batches_take_longer_than_the_limit_then_no_alarm(start: Callable[..., Run]) -> None:
    run = start("model._target_=endings.SluggishMLP", "watchdog.hang_timeout=2", "trainer.max_epochs=3")
    run.finish()
    assert (run.result["restarts"], run.result["step"]) == (0, 36)
    assert not run.events("worker_failed")


def test_run_when_a_worker_stands_still_then_the_log_that_is_named_has_its_stacks(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(
        "model._target_=endings.FaultyMLP",
        "+model.fault=hang",
        f"+model.once={tmp_path / 'once'}",
        "watchdog.hang_timeout=2",
        "trainer.max_epochs=4",
    )
    run.finish()
    (failed,) = run.events("worker_failed")
    assert (failed["kind"], failed["rank"]) == ("hang", 1)
    assert "endings.py" in failed["cause"]
    stacks = Path(failed["log"]).read_text()
    assert "most recent call first" in stacks
    assert "in fail\n" in stacks


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        (("watchdog.hang_timeout=100", "watchdog.startup_timeout=50"), 200.0),
        (("watchdog=off",), 1800.0),
    ],
    ids=["watched", "off: torch's own"],
)
def test_run_when_it_is_watched_then_collectives_wait_longer_than_the_watchdog(
    start: Callable[..., Run], tmp_path: Path, overrides: tuple[str, ...], seconds: float
) -> None:
    path = tmp_path / "seconds.json"
    probe = f"+callbacks.probe={{_target_: probes.CollectiveTimeout, path: {path}}}"
    run = start(probe, "trainer.max_epochs=1", *overrides)
    run.finish()
    assert json.loads(path.read_text()) == seconds
