"""Sweeps: every job has its own folder and result, and none leaks into the next."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.etcd import free_ports
from tests.integration.conftest import Run, alive


def results(folder: Path, jobs: int = 2) -> list[dict[str, Any]]:
    return [json.loads((folder / str(job) / "result.json").read_text()) for job in range(jobs)]


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
    assert sorted(entry.name for entry in sweep.iterdir()) == ["0", "1", "multirun.yaml", "sweep.csv"]
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


def test_sweep_when_jobs_fail_then_the_others_run_and_a_table_tells_all_h07_h08(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    arguments = ("-m", f"hydra.sweep.dir={sweep}", "objective.metric=val/loss", "objective.direction=min")
    arguments = (*arguments, "optimizer.lr=0.1,nan,-1,0.3", "trainer.max_epochs=2")
    run = start(*arguments)
    run.finish(code=1)
    rows = list(csv.DictReader((sweep / "sweep.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["finished", "failed", "failed", "finished"]
    assert [row["exit_code"] for row in rows] == ["0", "1", "1", "0"]
    assert [row["optimizer.lr"] for row in rows] == ["0.1", "nan", "-1", "0.3"]
    assert float(rows[0]["val/loss"]) > float(rows[3]["val/loss"])
    table = run.stdout.splitlines()[-7:]
    assert table[0].split() == ["job", "status", "val/loss", "optimizer.lr"]
    assert [line.split()[0] for line in table[1:5]] == ["0", "1", "2", "3"]
    assert table[4].split()[3] == "*"
    assert "objective.metric=val/loss is nan" in json.loads((sweep / "1" / "job.json").read_text())["error"]
    assert "Invalid learning rate" in json.loads((sweep / "2" / "job.json").read_text())["error"]

    done = {path: path.read_bytes() for job in "03" for path in (sweep / job).rglob("*") if path.is_file()}
    again = start(*arguments)
    again.finish(code=1)
    assert again.stdout.count("has finished") == 3
    assert {path: path.read_bytes() for path in done} == done


def test_sweep_when_a_worker_is_killed_and_then_all_is_stopped_then_the_same_command_loses_nothing(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    arguments = ("-m", "optimizer.lr=0.05,0.1,0.2,0.3", "trainer.max_epochs=30")
    undisturbed = start(*arguments, f"hydra.sweep.dir={tmp_path / 'undisturbed'}")
    undisturbed.finish()

    sweep = tmp_path / "sweep"
    run = start(*arguments, f"hydra.sweep.dir={sweep}")
    run.folder = sweep / "1"
    run.wait_for_checkpoint(20)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.folder = sweep / "2"
    run.wait_for_checkpoint(20)
    run.process.send_signal(signal.SIGINT)
    run.finish(code=130)
    assert f"the same command with hydra.sweep.dir={sweep} goes on" in run.stdout
    done = {path: path.read_bytes() for job in "01" for path in (sweep / job).rglob("*") if path.is_file()}

    again = start(*arguments, f"hydra.sweep.dir={sweep}")
    again.finish()
    assert {path: path.read_bytes() for path in done} == done
    found, expected = results(sweep, 4), results(tmp_path / "undisturbed", 4)
    assert [result["restarts"] for result in found] == [0, 1, 0, 0]
    assert [result["steps_lost"] for result in found] == [0, 0, 0, 0]
    assert [result["weights_sha256"] for result in found] == [result["weights_sha256"] for result in expected]
    assert (sweep / "sweep.csv").read_bytes() == (tmp_path / "undisturbed" / "sweep.csv").read_bytes()


def test_sweep_when_optuna_chooses_then_a_bad_trial_and_a_killed_worker_do_not_end_it(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    sweep, storage = tmp_path / "sweep", f"sqlite:///{tmp_path / 'study.db'}"
    optuna = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=1", "trainer.max_epochs=10")
    optuna = (*optuna, "hydra.sweeper.study_name=a", f"hydra.sweeper.storage={storage}")
    optuna = (*optuna, "objective.metric=val/loss", "objective.direction=min")
    arguments = ("-m", *optuna, f"hydra.sweep.dir={sweep}", "hydra.sweeper.max_failure_rate=1.0")
    wrong = start(*arguments, "hydra.sweeper.n_trials=1", "hydra.sweeper.direction=maximize", "optimizer.lr=0.1")
    wrong.finish(code=2)
    assert "hydra.sweeper.direction=maximize contradicts objective.direction=min" in wrong.stderr

    run = start(*arguments, "hydra.sweeper.study_name=b", "optimizer.lr=choice(0.1,nan,0.2)")
    run.folder = sweep / "2"
    run.wait_for_checkpoint(20)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.finish(code=run.process.wait(120))
    rows = list(csv.DictReader((sweep / "sweep.csv").read_text().splitlines()))
    assert [row["job"] for row in rows] == [str(number) for number in range(6)]
    for row in rows:
        assert row["status"] == ("failed" if row["optimizer.lr"] == "nan" else "finished")
    assert (run.process.returncode == 1) == any(row["optimizer.lr"] == "nan" for row in rows)


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
