"""Every recipe, and every callback of ``conf``, ends with the same weights with one worker, and with two and a kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_harness import recipes
from tests.integration import sample_data
from tests.integration.conftest import PROJECT, Run, traced

EXPERIMENTS = [each.name for each in recipes.list_experiments(PROJECT) if each.recipe is not None]
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
SHORT = (
    "elastic.logical_world_size=2",
    "data.batch_size=16",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=8",
    "trainer.limit_val_batches=2",
)


def weights_of(start: Callable[..., Run], folder: Path, experiment: str, *overrides: str) -> tuple[str, str]:
    """The hashes with one worker, and with two, of which one is killed after the third step."""
    alone = start(*SHORT, *overrides, "elastic.nproc_per_node=1", experiment=experiment)
    alone.finish()
    expected = alone.result["weights_sha256"]
    alone.folder.rename(folder / "alone")

    trace = folder / "trace"
    run = start(
        *SHORT,
        *overrides,
        f"+callbacks.trace={{_target_: probes.StepTrace, path: {trace}}}",
        f"+callbacks.gates={{_target_: probes.Gates, folder: {folder}, steps: [3]}}",
        experiment=experiment,
    )
    run.wait_until(lambda: trace.exists() and traced(trace) == 3)
    os.kill(run.workers()[1], signal.SIGKILL)
    (folder / "3").touch()
    run.finish()
    assert (run.result["restarts"], run.result["steps_lost"]) == (1, 0)
    return expected, run.result["weights_sha256"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_recipe_when_trained_by_one_or_by_two_and_one_is_killed_then_the_weights_are_the_same(
    start: Callable[..., Run], tmp_path: Path, experiment: str
) -> None:
    overrides: tuple[str, ...] = ()
    if experiment == "fashion_mnist_cnn":
        if not FASHION_MNIST.is_dir():
            pytest.skip("needs Debian's dataset-fashion-mnist")
        overrides = (f"data.root={FASHION_MNIST}",)
    if experiment == "cifar_resnet":
        overrides = (f"data.root={sample_data.cifar10(tmp_path)}",)
    expected, found = weights_of(start, tmp_path, experiment, *overrides)
    assert found == expected


def test_recipe_when_it_lies_outside_of_the_project_then_config_dir_finds_it(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    folder, recipe = tmp_path / "elsewhere", PROJECT / "recipes" / "digits_mlp"
    (folder / "experiment").mkdir(parents=True)
    (folder / "elsewhere.py").write_text((recipe / "module.py").read_text())
    config = (recipe / "experiment" / "digits_mlp.yaml").read_text()
    (folder / "experiment" / "mine.yaml").write_text(config.replace("recipes.digits_mlp.module", "elsewhere"))
    run = start(f"--config-dir={folder}", "trainer.max_epochs=1", experiment="mine", PYTHONPATH=str(folder))
    run.finish()
    assert run.result["step"] == 12


@pytest.mark.parametrize("callbacks", sorted(path.stem for path in (PROJECT / "conf" / "callbacks").glob("*.yaml")))
def test_callback_when_trained_by_one_or_by_two_and_one_is_killed_then_the_weights_are_the_same(
    start: Callable[..., Run], tmp_path: Path, callbacks: str
) -> None:
    expected, found = weights_of(start, tmp_path, "digits_mlp", f"callbacks={callbacks}")
    assert found == expected


def test_early_stopping_when_the_objective_does_not_improve_then_the_run_ends_there(start: Callable[..., Run]) -> None:
    run = start("callbacks=early_stopping", "optimizer.lr=0", "callbacks.early_stopping.patience=2")
    run.finish()
    assert run.result["epoch"] == 3


def test_ema_when_the_training_ends_then_the_average_is_what_is_left(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("callbacks=ema", "callbacks.ema.decay=1.0", "trainer.max_epochs=2")
    run.finish()
    assert run.result["metrics"]["val/acc"] < 0.3  # the weights it began with
    averaged = run.result["weights_sha256"]
    run.folder.rename(tmp_path / "averaged")
    plain = start("trainer.max_epochs=2")
    plain.finish()
    assert plain.result["weights_sha256"] != averaged
