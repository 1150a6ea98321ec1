"""Sweeps: every job has its own folder and result, and none leaks into the next."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.etcd import free_ports
from tests.integration.conftest import Run, alive


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / str(job) / "result.json").read_text()) for job in range(2)]


def test_sweep_when_two_values_are_given_then_two_folders_and_two_metrics(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    run = start("-m", f"hydra.sweep.dir={sweep}", "optimizer.lr=0.001,0.3", "trainer.max_epochs=3")
    run.finish()
    first, second = results(sweep)
    assert first["step"] == second["step"] == 36
    assert first["metrics"]["val/acc"] < second["metrics"]["val/acc"]
    assert first["weights_sha256"] != second["weights_sha256"]
    assert first["generations"] == second["generations"] == 1
    assert sorted(entry.name for entry in sweep.iterdir()) == ["0", "1", "multirun.yaml"]
    for job, lr in ((0, "0.001"), (1, "0.3")):
        assert f"lr: {lr}" in (sweep / str(job) / "config.yaml").read_text()


def test_sweep_when_started_again_then_finished_jobs_are_left_as_they_are(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    arguments = ("-m", f"hydra.sweep.dir={sweep}", "seed=1,2", "trainer.max_epochs=2")
    start(*arguments).finish()
    before = [(sweep / str(job) / "events.jsonl").read_text() for job in range(2)]
    again = start(*arguments)
    again.finish()
    assert again.stdout.count("has finished") == 2
    assert [(sweep / str(job) / "events.jsonl").read_text() for job in range(2)] == before


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (("model._target_=probes.RaisingMLP",), 1),
        (("restart.max_restarts=-5",), 2),
        (("elastic.min_nodes=2", "elastic.max_nodes=2", "rendezvous.join_timeout=1", "run_id=sweep_of_two"), 144),
    ],
    ids=["failed", "bad configuration", "too few nodes"],
)
def test_sweep_when_its_jobs_fail_then_each_is_told_and_the_code_is_that_of_a_run_p10(
    start: Callable[..., Run], tmp_path: Path, overrides: tuple[str, ...], code: int
) -> None:
    endpoint = f"rendezvous.endpoint=127.0.0.1:{free_ports(1)[0]}"
    run = start("-m", f"hydra.sweep.dir={tmp_path / 'sweep'}", "seed=1,2", endpoint, *overrides)
    run.finish(code=code)
    assert [f"Job {job} failed with exit code {code}" in run.stderr for job in range(2)] == [True, True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_sweep_when_stopped_then_it_ends_with_all_its_processes(
    start: Callable[..., Run], tmp_path: Path, number: signal.Signals
) -> None:
    sweep = tmp_path / "sweep"
    run = start("-m", f"hydra.sweep.dir={sweep}", "seed=1,2", "trainer.max_epochs=500")
    run.folder = sweep / "0"
    run.wait_for_checkpoint(40)
    workers = run.workers()
    run.process.send_signal(number)
    run.finish(code=128 + number, seconds=20)
    assert alive(workers) == []
    assert not (sweep / "1").exists()
