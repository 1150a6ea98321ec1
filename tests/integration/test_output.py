"""What a run leaves in its folder and shows on the screen."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integration.conftest import MODULES, PROJECT, Run

LONG = ("trainer.max_epochs=25",)


def curves(folder: Path) -> dict[str, list[int]]:
    """Steps of each TensorBoard scalar, in the order in which TensorBoard shows them."""
    accumulator = EventAccumulator(str(folder), purge_orphaned_data=True)
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_when_the_run_was_restarted_and_resumed_then_each_curve_is_that_of_one_run_l01(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    # Every step is logged, and 12 and 20 have no common multiple near: the resume points lie inside epochs.
    options = (*LONG, "trainer.log_every_n_steps=1", "callbacks=lr_monitor")
    undisturbed = start(*options)
    undisturbed.finish()
    expected = curves(undisturbed.folder / "tensorboard")
    undisturbed.folder.rename(tmp_path / "undisturbed")

    run = start(*options)
    run.wait_for_checkpoint(60)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.wait_until(lambda: len(run.events("generation_started")) == 2)
    run.wait_for_checkpoint(160)
    run.process.send_signal(signal.SIGTERM)
    run.finish(code=143)
    again = start(*options)
    again.finish()
    assert again.result["generations"] == 3
    found = curves(run.folder / "tensorboard")
    assert found.keys() == expected.keys()
    for tag, steps in found.items():
        assert steps == expected[tag], tag
        # Lightning adds the epoch to whatever it logs, so twice where training and validation log the same step.
        assert all(before < after or tag == "epoch" for before, after in pairwise(steps)), tag
    assert {path.name for path in (run.folder / "tensorboard").iterdir() if path.is_dir()} == set()


@pytest.mark.parametrize("step", [40, 36], ids=["in an epoch", "before a validation"])
def test_tensorboard_when_rank_0_dies_in_a_step_that_another_worker_finishes_then_it_has_its_points_l01(
    start: Callable[..., Run], tmp_path: Path, step: int
) -> None:
    late = f"+callbacks.late={{_target_: probes.LateRankZero, path: {tmp_path / 'finished'}, step: {step}}}"
    run = start("trainer.log_every_n_steps=1", "trainer.max_epochs=5", "callbacks=lr_monitor", late)
    run.finish()
    assert run.result["restarts"] == 1
    assert run.result["steps_lost"] == 0
    found = curves(run.folder / "tensorboard")
    (name,) = (tag for tag in found if tag.startswith("lr-"))
    assert found["train/loss"] == found[name] == list(range(60))
    assert found["val/loss"] == [11, 23, 35, 47, 59]


@pytest.mark.long
def test_tensorboard_when_rank_0_is_killed_at_any_moment_then_no_point_is_missing_or_shown_twice_l01(
    start: Callable[..., Run],
) -> None:
    chance = random.Random(1)
    run = start("trainer.log_every_n_steps=1", "trainer.max_epochs=200", "restart.max_restarts=-1")
    for generation in range(1, 31):
        run.wait_until(lambda: len(run.events("resumed")) == generation - 1)  # noqa: B023
        moment = time.monotonic() + chance.uniform(0.1, 0.4)
        run.wait_until(lambda: time.monotonic() > moment)  # noqa: B023
        os.kill(run.workers()[0], signal.SIGKILL)
    run.finish()
    assert (run.result["restarts"], run.result["steps_lost"]) == (30, 0)
    found = curves(run.folder / "tensorboard")
    assert found["train/loss"] == list(range(2400))
    assert found["val/loss"] == list(range(11, 2400, 12))


def test_tensorboard_when_killed_before_the_first_checkpoint_then_no_step_is_shown_twice_l01(
    start: Callable[..., Run],
) -> None:
    off = ("checkpoint=off", "checkpoint.every_n_steps=0", "checkpoint.rescue=false")
    run = start(*off, "trainer.log_every_n_steps=1", "trainer.max_epochs=20")
    run.wait_until(lambda: "epoch 3" in run.stdout)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.finish()
    assert curves(run.folder / "tensorboard")["train/loss"] == list(range(240))
    assert run.result["steps_lost"] > 0
    assert "going on" not in run.stdout


def test_run_folder_when_a_worker_was_killed_then_holds_one_of_everything_h04(start: Callable[..., Run]) -> None:
    run = start(*LONG)
    run.wait_for_checkpoint(20)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.finish()
    names = {entry.name for entry in run.folder.iterdir()}
    expected = {
        ".lock",
        ".workers.lock",
        ".node_memory",
        "config.yaml",
        "checkpoints",
        "tensorboard",
        "logs",
        "events.jsonl",
        "result.json",
    }
    assert names == expected
    logs = sorted(str(path.relative_to(run.folder / "logs")) for path in (run.folder / "logs").rglob("rank_*.log"))
    assert logs == [f"generation_{k}/rank_{rank}.log" for k in range(2) for rank in range(2)]
    (agent_log,) = (run.folder / "logs").glob("agent_*.log")
    assert "worker_failed" in agent_log.read_text()
    order = [event["event"] for event in run.events("run_started") + run.events("run_finished")]
    assert order == ["run_started", "run_finished"]
    for event in run.events("generation_started"):
        assert [worker["rank"] for worker in event["workers"]] == [0, 1]
        assert all(worker["pid"] > 0 and worker["node"] for worker in event["workers"])


def test_run_when_two_start_in_the_same_second_then_they_get_two_folders(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "train.py"), "+experiment=digits_mlp", "trainer.max_epochs=1"]
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(list((tmp_path / "runs" / "digits_mlp").iterdir())) == 2


def test_screen_when_output_is_no_terminal_then_header_metrics_and_summary_but_no_bar(
    start: Callable[..., Run],
) -> None:
    run = start("trainer.max_epochs=3")
    run.finish()
    lines = run.stdout.splitlines()
    assert len(lines) == 6 + 1 + 3 + 2
    for word in ("experiment", "data", "model", "world", "run folder", "resume with"):
        assert any(line.strip().startswith(word) for line in lines[:6]), word
    assert lines[6] == f"generation 0: workers {' '.join(map(str, run.workers()))}"
    assert all("val/acc" in line for line in lines[7:10])
    assert lines[10].startswith("finished: 36 steps")
    assert run.stderr == ""


@pytest.mark.parametrize("output", [">&-", "2>&-", "| head -1", "> /dev/full"])
def test_screen_when_nobody_can_be_shown_anything_then_trains_all_the_same(tmp_path: Path, output: str) -> None:
    train = f"{sys.executable} {PROJECT / 'train.py'} +experiment=digits_mlp trainer.max_epochs=2 hydra.run.dir=run"
    subprocess.run(["sh", "-c", f"{train} {output}"], cwd=tmp_path, timeout=120, stderr=subprocess.DEVNULL)
    assert '"status": "finished"' in (tmp_path / "run" / "result.json").read_text()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_screen_when_output_is_a_terminal_then_shows_one_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, str(PROJECT / "train.py"), "+experiment=digits_mlp", f"hydra.run.dir={tmp_path / 'run'}"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(MODULES)}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux: the other side is closed
        pass
    assert process.wait(60) == 0
    text = shown.decode()
    assert "\x1b[?25l" in text, "the cursor is hidden while a bar is shown"
    assert "/276" in text  # 12 epochs of 23 steps
    assert "finished: 276 steps" in text
