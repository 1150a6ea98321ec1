"""The strategy in a plain script, without Hydra."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import PROJECT, Run

EXAMPLE = PROJECT / "examples" / "plain_script.py"

SCRIPT = """
import sys
import elastic_harness.strategy
import pytorch_lightning as pl
from recipes.digits_mlp.module import DigitsData, DigitsMLP
import torch

def main():
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=int(sys.argv[1]), strategy="elastic", default_root_dir=".",
        enable_model_summary=False,
    )
    model, data = DigitsMLP(optimizer=torch.optim.Adam), DigitsData()
    trainer.fit(model, datamodule=data)
    print("metric", float(trainer.callback_metrics["val/acc"]))
    print("steps", trainer.global_step, trainer.current_epoch)
    print("validated", trainer.validate(model, datamodule=data, verbose=False)[0]["val/acc"])
    print("best", trainer.checkpoint_callback.best_model_path)
    weights = DigitsMLP.load_from_checkpoint(trainer.checkpoint_callback.best_model_path).state_dict()
    print("same", all(torch.equal(weights[name], value) for name, value in model.state_dict().items()))

"""


FAILING = """
import os
import pytorch_lightning as pl
import torch
import elastic_harness.strategy
from probes import RaisingMLP
from recipes.digits_mlp.module import DigitsData

class Saver(pl.Callback):
    def on_exception(self, trainer, pl_module, exception):
        with open("called", "a") as file:
            file.write(f"{os.getpid()} ")

if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, strategy="elastic", callbacks=[Saver()], default_root_dir="."
    )
    trainer.fit(RaisingMLP(optimizer=torch.optim.Adam), datamodule=DigitsData())
"""


LAZY = """
import pytorch_lightning as pl
import torch
import elastic_harness.strategy
from recipes.digits_mlp.module import DigitsData, DigitsMLP

class LazyMLP(DigitsMLP):
    def configure_model(self):
        if not hasattr(self, "extra"):
            self.extra = torch.nn.Linear(10, 10)

    def forward(self, images):
        return self.extra(super().forward(images))

if __name__ == "__main__":
    for fold in range(2):
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, max_epochs=8, strategy="elastic", logger=False, default_root_dir="."
        )
        model = LazyMLP(optimizer=torch.optim.Adam)
        trainer.fit(model, datamodule=DigitsData())
        print("metric", float(trainer.callback_metrics["val/acc"]))
        print("validated", trainer.validate(model, datamodule=DigitsData(), verbose=False)[0]["val/acc"], flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + 'if __name__ == "__main__":\n    main()\n')
    return path


def facts(run: Run) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in run.stdout.splitlines() if " " in line)


def test_script_when_strategy_is_elastic_then_the_result_is_in_the_trainer(
    run_script: Callable[..., Run], script: Path
) -> None:
    run = run_script(script, "10")
    run.finish()
    found = facts(run)
    assert float(found["metric"]) > 0.8
    assert found["steps"] == "120 10"
    assert float(found["validated"]) == pytest.approx(float(found["metric"]))
    assert found["same"] == "True"
    assert found["best"].endswith(".ckpt")
    assert run.result["status"] == "finished"


def test_script_when_a_worker_is_killed_then_goes_on(run_script: Callable[..., Run], script: Path) -> None:
    run = run_script(script, "40")
    run.wait_for_checkpoint(100)
    os.kill(run.workers()[0], signal.SIGKILL)
    run.finish()
    assert run.result["restarts"] == 1
    assert facts(run)["steps"] == "480 40"
    versions = list((run.folder.parent / "lightning_logs").iterdir())
    assert len(versions) <= 2, "one for fit, at most one for validate"


def test_script_when_main_guard_is_missing_then_the_error_says_so(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text(SCRIPT + "main()\n")
    run = run_script(path, "2")
    run.finish(code=1)  # an uncaught ConfigError in a script of the user's
    assert '`if __name__ == "__main__":`' in run.stderr.splitlines()[-1]
    assert "ConfigError" in run.stderr


def test_script_when_training_fails_then_on_exception_runs_in_workers_only(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    run = run_script(path)
    run.finish(code=1)
    workers = run.workers()
    called = [int(pid) for pid in (tmp_path / "called").read_text().split()]
    assert called
    assert set(called) <= set(workers)
    assert "TrainingFailed" in run.stderr


def test_script_when_layers_are_made_in_the_workers_then_their_weights_come_back(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(LAZY)
    run = run_script(path)
    run.finish(code=1)  # the last fit() is refused
    found = facts(run)
    assert float(found["validated"]) == pytest.approx(float(found["metric"]))
    assert "run_dir=" in run.stderr.splitlines()[-1]
    assert "give each fit() its own" in run.stderr


def test_script_when_stopped_then_ends_with_the_documented_code(run_script: Callable[..., Run], script: Path) -> None:
    run = run_script(script, "500")
    run.wait_for_checkpoint(50)
    run.process.send_signal(signal.SIGTERM)
    run.finish(code=143, seconds=30)
    assert "Traceback" not in run.stderr
    assert "the same command goes on from the newest checkpoint" in run.stdout


def test_example_script_when_run_then_trains(run_script: Callable[..., Run]) -> None:
    run = run_script(EXAMPLE, folder="runs/plain/elastic")
    run.finish()
    assert "val/acc" in run.stdout
