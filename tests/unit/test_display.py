from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from elastic_harness.display import Display, SteadyConsole
from elastic_harness.messages import Evaluated, Phase, Progress
from elastic_harness.restart import Decision, Failure
from elastic_harness.result import Result
from elastic_harness.run_folder import RunFolder

KILLED = Failure(1, "signal", "SIGKILL", step=37)


def display(terminal: bool = False) -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, soft_wrap=True, markup=False, highlight=False, force_terminal=terminal, width=100)
    return Display(console), output


def test_display_when_output_is_no_terminal_then_there_is_no_bar() -> None:
    shown, output = display()
    with shown.progress():
        for step in range(100):
            shown.update([Progress(step=step, total_steps=100, phase=Phase.TRAINING)])
    assert output.getvalue() == ""


def test_display_when_output_is_a_terminal_then_the_bar_shows_step_and_loss() -> None:
    shown, output = display(terminal=True)
    with shown.progress():
        shown.update([Progress(step=30, total_steps=120, epoch=2, phase=Phase.TRAINING, loss=0.25)])
        assert "30/120" in output.getvalue()
        assert "epoch 2" in output.getvalue()
        assert "loss 0.250" in output.getvalue()


def test_display_when_a_worker_failed_then_says_why_and_where_it_goes_on() -> None:
    shown, output = display()
    shown.restarting(KILLED, Decision(True, "restart 1 of 10"))
    shown.started(1, [41, 42])
    shown.resumed("/runs/a/checkpoints/step_00000030.ckpt", 30)
    assert output.getvalue().splitlines() == [
        "restart 1 of 10 at step 37: rank 1 was killed by SIGKILL, perhaps out of memory",
        "generation 1: workers 41 42",
        "going on from step 30 (step_00000030.ckpt)",
    ]


def test_display_when_a_run_starts_at_the_beginning_then_says_nothing_of_it() -> None:
    shown, output = display()
    shown.resumed(None, 0)
    assert output.getvalue() == ""


def test_display_when_nobody_reads_any_more_then_goes_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        shown = Display(SteadyConsole(file=closed))
        shown.line("x" * 10_000)
        shown.line("y")
        assert shown.quiet
        with contextlib.suppress(OSError):
            closed.close()


def test_display_when_lines_have_brackets_or_are_long_then_they_come_out_as_they_are(tmp_path: Path) -> None:
    shown, output = display()
    shown.evaluated(Evaluated(3, 120, {"val/[top1]": 0.5, "x" * 150: 1.0}))
    assert output.getvalue() == f"epoch 3  step 120  val/[top1] 0.5  {'x' * 150} 1\n"


def test_summary_when_the_run_ended_then_says_how(tmp_path: Path) -> None:
    shown, output = display()
    shown.summary(
        Result("finished", None, 240, 20, {"val/acc": 0.96}, "ab", 2, 1, 0, 7, [2, 2], 12.4), RunFolder(tmp_path)
    )
    assert "finished: 240 steps in 12 s, 1 restart, 0 resizes, 7 steps trained again  val/acc 0.96" in output.getvalue()
    assert str(tmp_path) in output.getvalue()


def test_summary_when_stopped_before_all_was_written_then_says_by_whom_and_where_it_goes_on(tmp_path: Path) -> None:
    shown, output = display()
    result = Result("preempted", None, 240, 20, {}, None, 2, 1, 0, 0, [2, 2], 12.4)
    shown.summary(result, RunFolder(tmp_path), "notice from AWS: terminate at 8", Path("/dev/shm/state_00000240.ckpt"))
    assert "stopped (notice from AWS: terminate at 8): 240 steps in 12 s" in output.getvalue()
    assert "goes on from /dev/shm/state_00000240.ckpt on this machine, and on others from the beg" in output.getvalue()


def test_update_when_there_is_no_bar_then_a_line_comes_after_a_while_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("elastic_harness.display.time.monotonic", lambda: now[0])
    shown, output = display()
    record = Progress()
    record.total_steps = 938
    for moment, step in ((1.0, 3), (31.0, 60), (32.0, 62), (61.0, 120), (99.0, 120)):
        now[0], record.step = moment, step
        shown.update([record])
    assert output.getvalue().splitlines() == ["step 60 of 938, 1.9 steps/s", "step 120 of 938, 2 steps/s"]


def test_summary_when_the_run_failed_then_says_from_where_it_can_go_on(tmp_path: Path) -> None:
    shown, output = display()
    shown.summary(Result("failed", "boom", 30, 1, {}, None, 1, 0, 0, 0, [2], 5.0), RunFolder(tmp_path))
    assert "once that is mended, the same command goes on from the beginning" in output.getvalue()
