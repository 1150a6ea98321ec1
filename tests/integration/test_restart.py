"""A run survives the death of its workers and of the zygote, and goes on after its last finished step."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.conftest import Run

LOADER = ("data._target_=probes.LoadedDigits",)
ESTIMATE = ("model._target_=probes.EstimatingMLP",)
LONG = ("trainer.max_epochs=25",)  # 300 steps of 12 an epoch


def read_trace(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]  # the last one may still be written


def zygote_of(run: Run) -> psutil.Process:
    """The parent of the workers, a child of the agent."""
    parent = psutil.Process(run.workers()[0]).parent()
    assert parent is not None
    assert parent.ppid() == run.process.pid
    return parent


def test_run_when_undisturbed_then_finishes_with_metrics(start: Callable[..., Run]) -> None:
    run = start()
    run.finish()
    assert run.result["status"] == "finished"
    assert run.result["step"] == 240
    assert run.result["epoch"] == 20
    assert run.result["metrics"]["val/acc"] > 0.9
    assert run.result["restarts"] == 0
    assert run.result["world_sizes"] == [2]
    assert len(run.result["weights_sha256"]) == 64


@pytest.mark.parametrize("rank", [0, 1])
def test_run_when_worker_is_killed_then_resumes_and_ends_with_the_same_weights(
    start: Callable[..., Run], tmp_path: Path, rank: int
) -> None:
    undisturbed = start(*LONG)
    undisturbed.finish()
    expected = undisturbed.result
    undisturbed.folder.rename(tmp_path / "undisturbed")

    run = start(*LONG)
    run.wait_for_checkpoint(40)
    os.kill(run.workers()[rank], signal.SIGKILL)
    run.finish()
    (failed,) = run.events("worker_failed")
    assert failed["rank"] == rank
    assert "SIGKILL" in failed["cause"]
    (resumed,) = run.events("resumed")
    assert resumed["step"] >= 40
    assert run.result["restarts"] == 1
    assert run.result["generations"] == 2
    assert run.result["steps_lost"] == resumed["steps_lost"] == 0
    assert run.result["step"] == expected["step"]
    assert run.result["weights_sha256"] == expected["weights_sha256"]
    assert f"rank {rank} was killed by SIGKILL" in run.stdout


@pytest.mark.parametrize("more", [(), LOADER, ESTIMATE, LOADER + ESTIMATE], ids=["plain", "loader", "estimate", "both"])
def test_run_when_killed_in_mid_epoch_then_trains_each_sample_once_an_epoch(
    start: Callable[..., Run], tmp_path: Path, more: tuple[str, ...]
) -> None:
    trace = tmp_path / "trace.jsonl"
    run = start(
        *LONG,
        "data.batch_size=8",  # 90 steps an epoch, so that a checkpoint every 20 lies inside
        "trainer.max_epochs=3",
        "+callbacks.trace._target_=probes.StepTrace",
        f"+callbacks.trace.path={trace}",
        # Between two steps, since a worker that dies in one that the others finish leaves no line of it.
        f"+callbacks.gates={{_target_: probes.Gates, folder: {tmp_path}, steps: [133]}}",
        *more,
        PYTHONHASHSEED="0",
    )
    run.wait_until(lambda: trace.exists() and [line["step"] for line in read_trace(trace)].count(133) == 2)
    os.kill(run.workers()[1], signal.SIGKILL)
    (tmp_path / "133").touch()
    run.finish()
    (resumed,) = run.events("resumed")
    assert resumed["step"] % 90 != 0
    generations = run.events("generation_started")
    first = {worker["pid"] for worker in generations[0]["workers"]}
    for epoch in range(3):
        seen: Counter[int] = Counter()
        for line in read_trace(trace):
            superseded = line["pid"] in first and line["step"] > resumed["step"]
            if line["epoch"] == epoch and not superseded:
                seen.update(line["samples"])
        assert len(seen) > 1400, f"epoch {epoch}"
        assert sum(seen.values()) == 1437


def test_run_when_zygote_gets_stop_signals_then_nothing_happens(start: Callable[..., Run]) -> None:
    run = start(*LONG)
    run.wait_for_checkpoint(20)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        zygote_of(run).send_signal(number)
    run.finish()
    assert run.result["restarts"] == 0


def test_run_when_zygote_is_killed_while_it_imports_then_the_run_goes_on(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, torch\n"
        "import pytorch_lightning as pl\n"
        "from elastic_harness import ElasticStrategy, zygote\n"
        "from recipes.digits_mlp.module import DigitsData, DigitsMLP\n"
        "if __name__ == '__main__':\n"
        "    trainer = pl.Trainer(max_epochs=2, accelerator='cpu', devices=2, strategy=ElasticStrategy(),\n"
        "                         logger=False, enable_progress_bar=False)\n"
        "    os.kill(zygote.pid(), signal.SIGKILL)\n"
        "    trainer.fit(DigitsMLP(optimizer=torch.optim.Adam), DigitsData(batch_size=64))\n"
    )
    run = run_script(script)
    run.finish()
    assert run.result["status"] == "finished"
    assert run.result["restarts"] <= 1


def test_run_when_zygote_dies_then_the_next_one_imports_by_itself(start: Callable[..., Run]) -> None:
    run = start(*LONG)
    run.wait_for_checkpoint(20)
    first = zygote_of(run)
    first.kill()
    run.wait_until(lambda: len(run.events("generation_started")) == 2)
    assert "forkserver" in " ".join(zygote_of(run).cmdline())
    run.finish()
    assert run.result["restarts"] == 1


def test_run_when_max_restarts_is_0_then_nothing_is_retried(start: Callable[..., Run]) -> None:
    run = start(*LONG, "restart.max_restarts=0")
    run.wait_for_checkpoint(20)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.finish(code=1)
    assert run.result["status"] == "failed"
    assert run.result["generations"] == 1
    assert "restart budget spent (0 of 0)" in run.stderr


def test_run_when_budget_is_spent_then_fails_and_can_be_resumed(start: Callable[..., Run]) -> None:
    run = start(*LONG, "restart.max_restarts=1")
    run.wait_for_checkpoint(20)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.wait_until(lambda: len(run.events("generation_started")) == 2)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.finish(code=1)
    assert "restart budget spent (1 of 1)" in run.stderr
    again = start(*LONG)
    again.finish()
    assert again.result["status"] == "finished"
    assert again.result["step"] == 300


def test_run_when_module_raises_before_the_first_step_then_one_attempt_and_its_traceback_last_p03(
    start: Callable[..., Run],
) -> None:
    run = start("model._target_=probes.RaisingMLP", "+model.at_step=0")
    run.finish(code=1)
    assert run.result["generations"] == 1
    last = run.stderr.strip().splitlines()[-20:]
    assert any("RuntimeError: boom-7" in line for line in last)
    assert any("rank 1 raised RuntimeError" in line and "probes.py" in line for line in last)
    assert "rank_1.log" in last[-1]
