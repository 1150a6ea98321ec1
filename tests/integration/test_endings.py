"""The README's table of endings: each row is made to happen, and told from what the run left."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.etcd import free_ports
from tests.integration.conftest import PROJECT, Run, alive, traced

EPOCHS = ("trainer.max_epochs=4",)  # 48 steps of 12 an epoch
LONG = ("trainer.max_epochs=4000",)
WATCHED = ("watchdog.hang_timeout=3",)


def faulty(fault: str, *, once: bool = True, step: int = 20) -> tuple[str, ...]:
    return (
        "model._target_=endings.FaultyMLP",
        f"+model.fault={fault}",
        f"+model.step={step}",
        *(["+model.once={folder}/once"] if once else []),
        *EPOCHS,
    )


def faulty_loader(fault: str) -> tuple[str, ...]:
    return ("data._target_=endings.FaultyDigits", f"+data.fault={fault}", "+data.once={folder}/once", *EPOCHS)


def send(number: signal.Signals) -> Callable[[Run], None]:
    return lambda run: run.process.send_signal(number)


def kill_all_workers(run: Run) -> None:
    trace = run.folder.parent / "trace"
    run.wait_until(lambda: traced(trace) == 30)
    for pid in run.workers():
        os.kill(pid, signal.SIGKILL)
    (trace.parent / "30").touch()


def kill_zygote(run: Run) -> None:
    parent = psutil.Process(run.workers()[0]).parent()
    assert parent is not None
    parent.kill()


def stop_zygote(run: Run) -> None:
    parent = psutil.Process(run.workers()[0]).parent()
    assert parent is not None
    parent.suspend()
    os.kill(run.workers()[1], signal.SIGKILL)


class Ending(NamedTuple):
    """A row of the table.

    Args:
        what: happens; the first column.
        overrides: that make it happen; ``{folder}`` is a folder of the test.
        code: the exit code.
        action: done when there is a checkpoint of 20 steps.
        cause: what the last lines on the screen name.
    """

    what: str
    overrides: tuple[str, ...]
    code: int
    action: Callable[[Run], None] | None = None
    cause: str = ""


ENDINGS = [
    Ending("the training ends", EPOCHS, 0),
    Ending("a key is misspelt, data are missing, the model does not pickle", ("trainer.max_epoch=3",), 2),
    Ending("an exception before the first step", faulty("raise:ValueError", step=0, once=False), 1, cause="ValueError"),
    Ending("an exception in training", faulty("raise:ValueError"), 0, cause="raised ValueError at"),
    Ending("the same exception at the same step again", faulty("raise:ValueError", once=False), 1, cause="boom-7"),
    Ending(
        "an exception named in `restart.permanent_errors`",
        (*faulty("raise:OwnError"), "restart.permanent_errors=[endings.OwnError]"),
        1,
        cause="raised OwnError at",
    ),
    Ending(
        "a worker or a loader process is killed, by whatever signal",
        (*faulty("signal:SIGSEGV"), "restart.max_restarts=-1"),
        0,
        cause="rank 1 was killed by SIGSEGV",
    ),
    Ending("a worker leaves early, even with code 0", faulty("exit:0"), 0, cause="rank 1 left early with exit code 0"),
    Ending(
        "a worker leaves with 3, and `restart=exit_code`",
        (*faulty("exit:3"), "restart=exit_code"),
        1,
        cause="rank 1 left early with exit code 3",
    ),
    Ending(
        "all workers are killed",
        (
            "+callbacks.trace={{_target_: probes.StepTrace, path: {folder}/trace}}",
            "+callbacks.gates={{_target_: probes.Gates, folder: {folder}, steps: [30]}}",
            *EPOCHS,
        ),
        0,
        kill_all_workers,
        cause="SIGKILL",
    ),
    Ending(
        "a worker stands still, or is stopped (SIGSTOP)",
        (*faulty("hang"), *WATCHED),
        0,
        cause="rank 1 stood still in training at",
    ),
    Ending(
        "more failures than `restart.max_restarts`",
        (*faulty("signal:SIGKILL", once=False), "restart.max_restarts=1"),
        1,
        cause="rank 1 was killed by SIGKILL, perhaps out of memory",
    ),
    Ending("SIGTERM, SIGUSR1, SIGUSR2, or a notice", LONG, 143, send(signal.SIGTERM)),
    Ending("SIGINT (Ctrl-C)", LONG, 130, send(signal.SIGINT)),
    Ending("SIGHUP", LONG, 129, send(signal.SIGHUP)),
    Ending(
        "too few nodes, a lost store of `rendezvous=c10d`",
        (
            *("elastic.min_nodes=2", "elastic.max_nodes=2", "run_id=run", "rendezvous.join_timeout=2"),
            *("rendezvous.endpoint=127.0.0.1:{port}", *EPOCHS),
        ),
        144,
    ),
    Ending("a bug in the harness itself", ("model._target_=endings.WithBrokenAgent", *EPOCHS), 1, cause="bug-7"),
]
# Not rows of their own.
MORE = [
    Ending("a worker is stopped (SIGSTOP)", (*faulty("signal:SIGSTOP"), *WATCHED), 0, cause="it is stopped (SIGSTOP)"),
    Ending(
        "a worker waits in a collective that the others do not call",
        (*faulty("collective"), *WATCHED, "elastic.consistency=none"),
        0,
        cause="stood still in training",
    ),
    Ending("a loader process is killed", faulty_loader("signal:SIGKILL"), 0, cause="a loader process of rank"),
    Ending("the process that forks the workers is killed", EPOCHS, 0, kill_zygote, cause="(the zygote) died"),
    Ending(
        "the process that forks the workers is stopped, and a worker dies",
        EPOCHS,
        0,
        stop_zygote,
        cause="rank 1 was killed by SIGKILL",
    ),
    Ending("a loader process stands still", (*faulty_loader("hang"), *WATCHED), 0, cause="stood still in training"),
    Ending("a loader process raises", faulty_loader("raise:ValueError"), 0, cause="raised ValueError at"),
    Ending("a StopIteration in training", faulty("raise:StopIteration"), 0, cause="StopIteration was raised in fail"),
    Ending("a failure with `restart=never`", (*faulty("signal:SIGKILL"), "restart=never"), 1, cause="SIGKILL"),
]


def happened(run: Run) -> str:
    """The second column: what the harness did, as the run folder tells it."""
    if not (run.folder / "result.json").exists():
        return "nothing was started" if run.process.returncode == 2 else "waited; the same command tries again"
    result = run.result
    match result["status"]:
        case "preempted":
            return "finished the step and kept its state; the same command goes on"
        case "failed":
            reason = re.search(r"\(((?:[^()]|\([^()]*\))*)\)$", result["failure"].splitlines()[0])
            kept = "kept the state" if run.events("rescued") else "lost the state"
            return f"gave up: {reason[1]}" if reason else f"stopped all workers, {kept}, showed the traceback"
    if not result["restarts"]:
        return "trained to the end"
    return "restarted; no step was lost" if not result["steps_lost"] else "restarted from the newest checkpoint"


@pytest.mark.parametrize("ending", [*ENDINGS, *MORE], ids=lambda ending: ending.what)
def test_run_when_it_ends_then_as_the_readme_says_p03_p08_p10_p11(
    start: Callable[..., Run], tmp_path: Path, ending: Ending
) -> None:
    places = {"folder": str(tmp_path), "port": str(free_ports(1)[0])}
    run = start(*(override.format(**places) for override in ending.overrides))
    if ending.action is not None:
        run.wait_for_checkpoint(20)
        ending.action(run)
    run.finish(code=ending.code)
    assert ending.cause in run.stdout + "".join(run.stderr.splitlines()[-20:])
    row = f"| {ending.what} | {happened(run)} | {ending.code} |"
    assert ending in MORE or row in (PROJECT / "README.md").read_text(), row
    assert not alive([worker["pid"] for event in run.events("generation_started") for worker in event["workers"]])


def test_run_when_a_worker_is_slow_then_it_is_named_once_and_all_times_are_kept(start: Callable[..., Run]) -> None:
    run = start("model._target_=endings.SlowMLP", "watchdog.straggler_seconds=1", *EPOCHS)
    run.finish()
    assert [event["rank"] for event in run.events("straggler")] == [1]
    assert run.stdout.count("rank 1 is slow: ") == 1
    times = [event["seconds"] for event in run.events("step_times")]
    assert len(times) > 1
    assert all(slow > 0.1 > quick for quick, slow in times)


def test_run_when_it_fails_again_without_a_step_then_the_next_restart_waits(start: Callable[..., Run]) -> None:
    limits = ("restart.max_restarts=2", "restart.backoff.initial_seconds=2", "restart.backoff.jitter=0")
    run = start(*faulty("signal:SIGKILL", once=False), *limits)
    run.finish(code=1)
    failed = [event["time"] for event in run.events("worker_failed")]
    started = [event["time"] for event in run.events("generation_started")]
    assert (len(failed), len(started)) == (3, 3)
    assert started[2] - failed[1] >= 2.0
    assert started[1] - failed[0] < started[2] - failed[1]


@pytest.mark.parametrize(
    "limits", [("restart.refund_after_steps=10",), ("restart.refund_after_steps=0", "restart.window_seconds=0.2")]
)
def test_run_when_failures_are_far_apart_then_they_do_not_add_up(
    start: Callable[..., Run], tmp_path: Path, limits: tuple[str, ...]
) -> None:
    faults = ",".join(f"'{step}:1:signal:SIGKILL'" for step in (5, 15, 25))
    failing = ("model._target_=endings.FailingOftenMLP", f"+model.folder={tmp_path}", f"+model.faults=[{faults}]")
    run = start(*failing, *EPOCHS, "restart.max_restarts=1", *limits)
    run.finish()
    assert (run.result["restarts"], run.result["steps_lost"]) == (3, 0)
