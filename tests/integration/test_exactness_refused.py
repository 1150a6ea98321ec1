"""What cannot train the same weights at any number of workers is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Run


@pytest.mark.parametrize(
    ("overrides", "words", "workers"),
    [
        (["+trainer.accumulate_grad_batches=2"], ["trainer.accumulate_grad_batches=2 must be 1", "logical_world"], 0),
        (["model._target_=probes.ReducingMLP"], ["torch.distributed.all_reduce", "probes.py", "consistency=none"], 1),
        (["model._target_=probes.ChangingMLP"], ["on_train_batch_start changes the batch", "training_step"], 1),
        (["model._target_=probes.LosslessMLP", "elastic.nproc_per_node=1"], ["training_step returned no loss"], 1),
        (["data.batch_size=3000", "data._target_=probes.DroppingDigits"], ["1437 samples, fewer than one step"], 1),
    ],
)
def test_run_when_it_cannot_be_exact_then_it_is_refused_with_the_way_out(
    start: Callable[..., Run], overrides: list[str], words: list[str], workers: int
) -> None:
    run = start(*overrides)
    run.finish(code=2)
    assert all(word in run.stderr for word in words), run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.events("generation_started")) == workers


def test_run_when_resumed_with_another_logical_world_size_then_it_is_refused(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start("elastic.logical_world_size=6", "trainer.max_epochs=1")
    run.finish()
    again = start("elastic.logical_world_size=4", "trainer.max_epochs=2")
    again.finish(code=2)
    assert "elastic.logical_world_size=4 must be the 6" in again.stderr
    run.folder.rename(tmp_path / "before")
    checkpoint = max((tmp_path / "before" / "checkpoints").glob("*.ckpt"))
    elsewhere = start("elastic.logical_world_size=4", f"resume={checkpoint}")
    elsewhere.finish(code=2)
    assert f"elastic.logical_world_size=4 must be the 6 of {checkpoint}" in elsewhere.stderr
