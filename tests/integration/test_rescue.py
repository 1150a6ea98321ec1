"""Nothing is lost when a worker is interrupted, whatever it was doing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Run, noisy_network, traced

# 12 steps an epoch, with a validation after each.
FAULTS = [
    "forward:3:0",
    "election:3:0",
    "loading:3:1",
    "backward:14:1",
    "reduction:20:0",
    "update:27:1",
    "batch_end:30:0",
    "validation:36:1",
    "epoch_end:48:0",
    "saving:60:0",
]


@pytest.fixture
def undisturbed(start: Callable[..., Run], tmp_path: Path) -> str:
    run = start("trainer.max_epochs=5")
    run.finish()
    run.folder.rename(tmp_path / "undisturbed")
    sha: str = json.loads((tmp_path / "undisturbed" / "result.json").read_text())["weights_sha256"]
    return sha


def with_faults(folder: Path, *faults: str) -> str:
    return f"+callbacks.faults={{_target_: faults.FaultInjector, folder: {folder}, faults: [{','.join(faults)}]}}"


def test_run_when_killed_in_every_phase_then_loses_no_step_and_ends_with_the_same_weights(
    start: Callable[..., Run], tmp_path: Path, undisturbed: str
) -> None:
    quoted = [f"'{fault}'" for fault in FAULTS]
    run = start("trainer.max_epochs=5", "checkpoint.every_n_steps=100", with_faults(tmp_path, *quoted))
    run.finish()
    assert run.result["restarts"] == len(FAULTS)
    assert run.result["steps_lost"] == 0
    assert run.result["weights_sha256"] == undisturbed


def test_run_when_killed_with_averaged_weights_and_metrics_then_loses_no_step(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    common = (
        "trainer.max_epochs=3",
        "checkpoint.every_n_steps=100",
        *noisy_network(tmp_path),
        "+callbacks.average={_target_: faults.Averaging}",
    )
    undisturbed = start(*common)
    undisturbed.finish()
    undisturbed.folder.rename(tmp_path / "undisturbed")
    expected = json.loads((tmp_path / "undisturbed" / "result.json").read_text())
    run = start(*common, with_faults(tmp_path, *(f"'{fault}'" for fault in ("backward:4:1", "validation:12:0"))))
    run.finish()
    assert (run.result["restarts"], run.result["steps_lost"]) == (2, 0)
    assert run.result["weights_sha256"] == expected["weights_sha256"]
    assert run.result["metrics"] == expected["metrics"]


def test_run_when_a_process_of_it_gets_sigterm_then_finishes_the_step_and_keeps_it_p04(
    start: Callable[..., Run], tmp_path: Path, undisturbed: str
) -> None:
    trace = tmp_path / "trace"
    overrides = (
        "trainer.max_epochs=5",
        "checkpoint.every_n_steps=100",
        f"+callbacks.trace={{_target_: probes.StepTrace, path: {trace}}}",
    )
    for number, target in enumerate(("agent", "rank 0", "rank 1", "stopped peer")):
        run = start(*overrides)
        run.wait_until(lambda number=number: trace.exists() and traced(trace) > 12 * number + 2)
        workers = run.workers()
        if target == "stopped peer":
            os.kill(workers[1], signal.SIGSTOP)
        os.kill(workers[int(target[-1])] if target.startswith("rank") else run.process.pid, signal.SIGTERM)
        run.finish(code=143, seconds=20)
        assert run.events("run_finished")[-1]["step"] == traced(trace), target
        assert run.result["steps_lost"] == 0
    run = start(*overrides)
    run.finish()
    assert [event["steps_lost"] for event in run.events("resumed")] == [0] * 4
    assert run.result["restarts"] == 0
    assert run.result["weights_sha256"] == undisturbed


@pytest.mark.long
@pytest.mark.parametrize("data", ["recipes.digits_mlp.module.DigitsData", "probes.LoadedDigits"])
def test_run_when_a_worker_gets_sigterm_again_and_again_then_each_time_its_step_is_kept_p04_p05(
    start: Callable[..., Run], tmp_path: Path, data: str
) -> None:
    trace = tmp_path / "trace"
    overrides = (
        "trainer.max_epochs=12",
        "checkpoint.every_n_steps=1000",
        f"data._target_={data}",
        f"+callbacks.trace={{_target_: probes.StepTrace, path: {trace}}}",
    )
    for number in range(10):
        run = start(*overrides)
        run.wait_until(lambda number=number: trace.exists() and traced(trace) > 12 * number + 2)
        os.kill(run.workers()[number % 2], signal.SIGTERM)
        run.finish(code=143, seconds=20)
        assert run.events("run_finished")[-1]["step"] == traced(trace), number
    assert (run.result["restarts"], run.result["steps_lost"]) == (0, 0)
