"""Stopping a run from outside, and starting it again in its folder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import Run, alive, traced

LONG = ("trainer.max_epochs=25",)
LOADERS = ("data._target_=probes.LoadedDigits",)


def contents(folder: Path) -> dict[str, str]:
    """Hash of every file below a folder, and the time it was written."""
    return {
        str(path.relative_to(folder)): f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
def test_run_when_agent_gets_a_stop_signal_then_ends_with_its_code_and_can_be_resumed(
    start: Callable[..., Run], number: int, code: int
) -> None:
    run = start(*LONG)
    run.wait_for_checkpoint(40)
    workers = run.workers()
    run.process.send_signal(number)
    run.finish(code=code, seconds=20)
    assert alive(workers) == []
    assert run.result["status"] == "preempted"
    if number == signal.SIGTERM:
        again = start(*LONG)
        again.finish()
        assert again.events("resumed")[0]["step"] >= 40
        assert again.result["step"] == 300
        assert again.result["generations"] == 2
        assert again.result["restarts"] == 0


@pytest.mark.parametrize("consistency", ["bitwise", "none"])
def test_run_when_every_process_of_it_gets_sigterm_then_ends_with_143_and_charges_and_loses_nothing_p05(
    start: Callable[..., Run], tmp_path: Path, consistency: str
) -> None:
    trace = f"+callbacks.trace={{_target_: probes.StepTrace, path: {tmp_path / 'trace'}}}"
    run = start(*LONG, *LOADERS, trace, f"elastic.consistency={consistency}")
    run.wait_for_checkpoint(20)
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(family) >= 5, "zygote, two workers and a loader process each"
    for process in [*family, psutil.Process(run.process.pid)]:
        process.send_signal(signal.SIGTERM)
    run.finish(code=143, seconds=20)
    assert run.events("worker_failed") == []
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []
    steps = [json.loads(line)["step"] for line in (tmp_path / "trace").read_text().splitlines()]
    assert run.events("checkpoint_saved")[-1]["step"] == max(steps)


def test_run_when_agent_is_killed_outright_then_no_process_is_left_and_the_run_resumes_p02(
    start: Callable[..., Run],
) -> None:
    run = start(*LONG, *LOADERS)
    run.wait_for_checkpoint(40)
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(family) >= 5, "zygote, two workers and a loader process each"
    run.process.kill()
    run.process.wait()
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []
    again = start(*LONG, *LOADERS)
    again.finish()
    assert again.events("resumed")[0]["step"] >= 40


def test_run_when_agent_is_killed_while_workers_hold_the_interpreter_then_they_end_all_the_same_p02(
    start: Callable[..., Run],
) -> None:
    run = start("model._target_=probes.HoldingMLP")
    run.wait_for_checkpoint(20)
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait()
    _, left = psutil.wait_procs(family, timeout=15)
    assert left == []


def test_run_when_stopped_before_any_worker_starts_then_ends_with_143_and_leaves_no_folder(
    start: Callable[..., Run],
) -> None:
    run = start()
    run.wait_until(lambda: psutil.Process(run.process.pid).children())
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.send_signal(signal.SIGUSR1)
    run.finish(code=143, seconds=20)
    _, left = psutil.wait_procs(family, timeout=15)
    assert left == []
    assert not run.folder.exists()


def test_run_when_a_worker_is_killed_then_its_loader_processes_end_too(start: Callable[..., Run]) -> None:
    run = start(*LONG, *LOADERS)
    run.wait_for_checkpoint(20)
    victim = run.workers()[1]
    loaders = psutil.Process(victim).children(recursive=True)
    assert loaders
    os.kill(victim, signal.SIGKILL)
    _, left = psutil.wait_procs(loaders, timeout=5)
    assert left == []
    run.finish()


def test_run_when_already_finished_then_says_so_and_touches_nothing(start: Callable[..., Run]) -> None:
    run = start()
    run.finish()
    before = contents(run.folder)
    again = start()
    again.finish(seconds=15)
    assert "has finished" in again.stdout
    assert contents(again.folder) == before


def test_run_when_it_finishes_while_a_second_start_waits_then_that_touches_nothing(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    overrides = (
        "trainer.max_epochs=5",
        f"+callbacks.trace={{_target_: probes.StepTrace, path: {tmp_path / 'trace'}}}",
        f"+callbacks.gates={{_target_: probes.Gates, folder: {tmp_path}, steps: [59]}}",
    )
    run = start(*overrides)
    run.wait_until(lambda: (tmp_path / "trace").exists() and traced(tmp_path / "trace") == 59)
    second = start(*overrides)
    second.wait_until(lambda: "run folder" in second.stdout)
    (tmp_path / "59").touch()
    run.finish()
    second.finish()
    assert "has finished after 60 steps" in second.stdout
    assert len(run.events("run_started")) == 1
    assert run.result["step"] == 60


def test_run_when_finished_and_max_epochs_raised_then_trains_only_the_added_epochs(start: Callable[..., Run]) -> None:
    run = start()
    run.finish()
    again = start("trainer.max_epochs=22")
    again.finish()
    assert again.events("resumed")[0]["step"] == 240
    assert again.result["step"] == 264
    assert again.result["epoch"] == 22


def test_run_when_finished_then_extended_and_killed_then_still_trains_the_added_epochs(
    start: Callable[..., Run],
) -> None:
    start("trainer.max_epochs=5").finish()
    extended = start("trainer.max_epochs=400")
    extended.wait_until(lambda: extended.events("resumed"))
    extended.process.kill()
    extended.process.wait()
    again = start("trainer.max_epochs=400")
    again.wait_until(lambda: len(again.events("resumed")) == 2)
    again.process.send_signal(signal.SIGTERM)
    again.finish(code=143)
    assert "has finished" not in again.stdout
    assert again.result["metrics"]["val/acc"] > 0.5


def test_run_when_nothing_is_left_to_train_then_keeps_its_metrics(start: Callable[..., Run]) -> None:
    run = start("trainer.max_epochs=5")
    run.finish()
    metrics = run.result["metrics"]
    (run.folder / "result.json").unlink()  # as after a kill just before it is written
    again = start("trainer.max_epochs=5")
    again.finish()
    assert again.result["metrics"] == pytest.approx(metrics)
    assert again.result["status"] == "finished"
    assert again.result["weights_sha256"] == run.result["weights_sha256"]


def test_run_when_the_config_has_changed_since_then_the_difference_is_shown(start: Callable[..., Run]) -> None:
    start("trainer.max_epochs=2").finish()
    again = start("trainer.max_epochs=3")
    again.finish()
    assert "-   max_epochs: 2" in again.stdout
    assert "+   max_epochs: 3" in again.stdout


def test_run_when_resumed_from_the_path_of_a_checkpoint_then_goes_on_from_its_step_h01(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    first = start("trainer.max_epochs=5")
    first.finish()
    other = tmp_path / "epoch=5-step=60.ckpt"
    (newest,) = (first.folder / "checkpoints").glob("step_00000060.ckpt")
    newest.rename(other)
    again = start(f'resume="{other}"', f"hydra.run.dir={tmp_path / 'other'}", "trainer.max_epochs=6")
    again.folder = tmp_path / "other"
    again.finish()
    (resumed,) = again.events("resumed")
    assert resumed["step"] == 60
    assert resumed["checkpoint"] == str(other)
    assert again.result["step"] == 72
    assert again.result["steps_lost"] == 0


def test_run_when_resume_is_never_then_starts_over_and_keeps_the_old_one(start: Callable[..., Run]) -> None:
    run = start()
    run.finish()
    again = start("resume=never")
    again.finish()
    assert again.events("resumed") == []
    assert again.result["generations"] == 1
    assert (again.folder / "superseded_0" / "result.json").exists()


def test_run_when_its_folder_is_in_use_then_the_second_start_is_refused(start: Callable[..., Run]) -> None:
    run = start("trainer.max_epochs=1000")
    run.wait_for_checkpoint(20)
    second = start("trainer.max_epochs=1000")
    second.finish(code=2)
    assert f"is in use by process {run.process.pid}" in second.stderr
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    run.finish(code=143, seconds=20)
