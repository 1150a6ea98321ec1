"""What a worker inherits, and what it finds imported."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

from tests.integration.conftest import PROJECT, Run


def test_worker_when_started_then_has_the_settings_of_the_launching_process(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    facts = tmp_path / "globals.json"
    run = start(
        "trainer.max_epochs=1",
        "trainer.deterministic=true",
        "seed=123",
        "elastic.num_threads=3",
        "+callbacks.globals._target_=probes.GlobalsProbe",
        f"+callbacks.globals.path={facts}",
        "model._target_=settings.SettingMLP",
        PROBE_VARIABLE="kept",
    )
    run.finish()
    assert json.loads(facts.read_text()) == {
        "deterministic": True,
        "warn_only": False,
        "cudnn_benchmark": False,
        "cudnn_deterministic": True,
        "matmul_precision": "high",
        "default_dtype": "torch.float64",
        "threads": 3,
        "seed": "123",
        "cublas": ":4096:8",
        "start_method": multiprocessing.get_start_method(),
        "own_variable": "kept",
        "rank": 0,
    }


def test_worker_when_started_then_the_modules_module_had_been_imported(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    report = tmp_path / "import.json"
    run = start("model._target_=probes.ImportReportingMLP", f"+model.path={report}")
    run.wait_until(report.exists)
    run.finish()
    found = json.loads(report.read_text())
    assert found["imported_by"] == run.process.pid
    assert found["worker"] in run.workers()


def test_run_when_the_module_computes_as_it_is_imported_then_workers_can_compute_too(start: Callable[..., Run]) -> None:
    run = start("model._target_=computing.ComputingMLP", "trainer.max_epochs=1", OMP_NUM_THREADS="4")
    run.finish()
    assert run.result["restarts"] == 0


def test_run_when_started_elsewhere_then_works_and_leaves_its_folder_there(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = start("trainer.max_epochs=1", "hydra.run.dir=runs/mine", cwd=elsewhere)
    run.finish()
    assert (elsewhere / "runs" / "mine" / "result.json").exists()
    assert list(elsewhere.iterdir()) == [elsewhere / "runs"]
    assert not (PROJECT / "runs" / "mine").exists()


def test_run_when_started_from_the_root_folder_then_works(start: Callable[..., Run]) -> None:
    run = start("trainer.max_epochs=1", cwd=Path("/"))
    run.finish()
    assert run.result["status"] == "finished"
