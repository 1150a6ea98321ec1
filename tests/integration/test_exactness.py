"""The same weights, decisions and samples at any number of workers, and whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Run, noisy_network

SAMPLES = 700
EPOCHS = 6
STEPS = 8  # 700 samples, 6 logical ranks of 16: 7 steps and one of 28


@dataclass
class Story:
    """What came of a run."""

    result: dict[str, Any]
    decisions: list[dict[str, Any]]
    ledger: list[dict[str, Any]]

    def samples(self, epoch: int, superseded: Callable[[dict[str, Any]], bool]) -> Counter[int]:
        """How often each sample was trained on in an epoch, without steps that were trained again."""
        lines = [line for line in self.ledger if line["epoch"] == epoch and not superseded(line)]
        return Counter(sample for line in lines for sample in line["ids"])


Tell = Callable[..., Story]


@pytest.fixture
def noisy(start: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Starts the noisy network on 6 logical ranks, in the one run folder."""

    def noisy(workers: int, *overrides: str) -> Run:
        command = [
            *noisy_network(tmp_path),
            "data.batch_size=16",
            f"trainer.max_epochs={EPOCHS}",
            "checkpoint.every_n_steps=3",
            "elastic.num_threads=1",
            f"elastic.nproc_per_node={workers}",
        ]
        return start(*command, *overrides)

    return noisy


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[Run, str], Story]:
    """Waits for a run and sets its folder and files aside."""

    def tell(run: Run, name: str) -> Story:
        run.finish(seconds=280)
        result = run.result
        run.folder.rename(tmp_path / f"run-{name}")
        files = [(tmp_path / file).rename(tmp_path / f"{file}-{name}") for file in ("decisions", "ledger")]
        decisions, ledger = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
        return Story(result, decisions, ledger)

    return tell


def kill(run: Run, step: int, rank: int) -> None:
    """Kill a worker of the newest generation once a checkpoint of ``step`` steps is there."""
    run.wait_for_checkpoint(step)
    os.kill(run.workers()[rank], signal.SIGKILL)
    generations = len(run.events("worker_failed"))
    run.wait_until(lambda: len(run.events("worker_failed")) > generations)


SIX = ("elastic.logical_world_size=6",)


def test_run_when_workers_differ_or_die_then_the_weights_are_the_same(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    hashes = {}
    for name, workers, kills in (("one", 1, []), ("three", 3, []), ("two", 2, [40, 80, 120])):
        run = start(*SIX, "elastic.num_threads=1", "data.batch_size=16", f"elastic.nproc_per_node={workers}")
        for number, step in enumerate(kills):
            kill(run, step, number % 2)
        run.finish()
        assert run.result["restarts"] == len(kills)
        hashes[name] = (run.result["weights_sha256"], run.result["metrics"])
        run.folder.rename(tmp_path / name)
    assert hashes["one"] == hashes["three"] == hashes["two"]


def test_run_when_it_has_everything_that_could_differ_then_nothing_does_c01_c02_d02_d07(
    noisy: Callable[..., Run], tell: Callable[[Run, str], Story]
) -> None:
    one = tell(noisy(1, *SIX), "one")
    assert [line["val/count"] for line in one.decisions] == [39] * EPOCHS
    assert len({line["lr"] for line in one.decisions}) > 1, "the plateau scheduler has something to decide"
    three = tell(noisy(3, *SIX), "three")

    run = noisy(2, *SIX)
    kill(run, 9, 1)  # within the second epoch
    kill(run, 27, 0)
    killed = tell(run, "killed")
    assert killed.result["restarts"] == 2

    for story in (three, killed):
        assert story.result["weights_sha256"] == one.result["weights_sha256"]
        assert story.result["metrics"] == one.result["metrics"]
        assert {line["epoch"]: line for line in story.decisions} == {line["epoch"]: line for line in one.decisions}
    for story in (one, three):
        for epoch in range(EPOCHS):
            assert story.samples(epoch, lambda line: False) == Counter(range(SAMPLES))


def test_run_when_stopped_within_an_epoch_and_resumed_with_other_workers_then_nothing_differs_c01(
    noisy: Callable[..., Run], tell: Callable[[Run, str], Story]
) -> None:
    validations = ("+trainer.val_check_interval=4",)  # within an epoch and at its end
    by_validation = ("+model.monitor=val/loss",)
    undisturbed = tell(noisy(2, *SIX, *validations, *by_validation), "undisturbed")
    pids: list[int] = []
    resumed: list[int] = []
    for workers, step in ((2, 9), (3, 21)):
        # The number of logical ranks is taken over from the run folder.
        run = noisy(workers, *(SIX if workers == 2 else ()), *validations, *by_validation)
        run.wait_for_checkpoint(step)
        run.process.terminate()
        run.finish(code=143)
        resumed.append(max(event["step"] for event in run.events("checkpoint_saved")))
        pids.append(run.process.pid)
    disturbed = tell(noisy(1, *validations, *by_validation), "disturbed")
    assert [step % STEPS != 0 for step in resumed].count(True) >= 1
    assert disturbed.result["weights_sha256"] == undisturbed.result["weights_sha256"]
    assert disturbed.result["metrics"] == undisturbed.result["metrics"]
    assert {d["epoch"]: d for d in disturbed.decisions} == {d["epoch"]: d for d in undisturbed.decisions}


def test_run_when_a_worker_dies_inside_a_validation_then_what_is_decided_on_it_is_the_same_c02(
    noisy: Callable[..., Run], tell: Callable[[Run, str], Story], tmp_path: Path
) -> None:
    deciding = (
        *SIX,
        "+trainer.val_check_interval=4",
        "+model.monitor=val/loss",
        "+callbacks.stop._target_=pytorch_lightning.callbacks.EarlyStopping",
        "+callbacks.stop.monitor=val/loss",
        "+callbacks.stop.min_delta=0.3",
        "+callbacks.stop.patience=2",
    )
    one = tell(noisy(1, *deciding), "one")
    killed = tell(noisy(2, *deciding, f"+model.kill={tmp_path / 'killed'}"), "killed")
    assert killed.result["restarts"] == 1
    assert one.result["step"] < EPOCHS * STEPS, "it is stopped early"
    for name in ("step", "weights_sha256", "metrics"):
        assert killed.result[name] == one.result[name]
    assert {d["epoch"]: d for d in killed.decisions} == {d["epoch"]: d for d in one.decisions}
    best = [
        [file.name for file in (tmp_path / f"run-{name}" / "checkpoints").glob("best*")] for name in ("one", "killed")
    ]
    assert best[0] == best[1] != []


def test_run_when_some_workers_have_no_sample_or_batch_then_nothing_differs(
    noisy: Callable[..., Run], tell: Callable[[Run, str], Story]
) -> None:
    short = (
        *SIX,
        "+data.samples=674",  # the last step has 2 samples: one worker of three has some
        "+data.num_workers=0",
        "trainer.limit_val_batches=2",  # nor does each have a batch to validate
        "trainer.max_epochs=2",
        "trainer.precision=bf16-mixed",
        "trainer.gradient_clip_val=0.5",
    )
    one, three = (tell(noisy(workers, *short), str(workers)) for workers in (1, 3))
    assert [line["val/count"] for line in one.decisions] == [8, 8]
    assert three.result["weights_sha256"] == one.result["weights_sha256"]
    assert three.result["metrics"] == one.result["metrics"]
    assert three.decisions == one.decisions


def test_run_when_there_are_several_validation_loaders_then_each_has_its_numbers(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    metrics = []
    for workers in (1, 2):
        run = start(
            *("model._target_=probes.ThreeLoadersMLP", "data._target_=probes.ThreeLoaders", "objective.metric=null"),
            *("elastic.logical_world_size=2", f"elastic.nproc_per_node={workers}", "trainer.max_epochs=1"),
        )
        run.finish()
        metrics.append(run.result["metrics"])
        run.folder.rename(tmp_path / str(workers))
    assert [metrics[0][f"val/place/dataloader_idx_{index}"] for index in range(3)] == [7.0, 10.0, 23.0]
    assert metrics[0] == metrics[1]


HALF = """
import sys
import pytorch_lightning as pl
import torch
from elastic_harness import ElasticConfig, ElasticStrategy
from pytorch_lightning.plugins.precision import MixedPrecision
from recipes.digits_mlp.module import DigitsData, DigitsMLP

class Watched(DigitsMLP):
    def on_train_end(self):
        print("scale", self.trainer.precision_plugin.scaler.get_scale(), flush=True)

if __name__ == "__main__":
    pl.seed_everything(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # overflows at first
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(sys.argv[1]), max_epochs=2, logger=False, default_root_dir=sys.argv[1],
        strategy=ElasticStrategy(elastic=ElasticConfig(logical_world_size=3, num_threads=1)),
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)], gradient_clip_val=1.0, num_sanity_val_steps=1,
    )
    trainer.fit(Watched(optimizer=torch.optim.SGD), datamodule=DigitsData(batch_size=32))
"""


def test_script_when_precision_is_16_mixed_and_gradients_overflow_then_the_weights_are_the_same(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "half.py"
    path.write_text(HALF)
    hashes, scales = set(), set()
    for workers in ("1", "2"):
        run = run_script(path, workers, folder=f"{workers}/elastic")
        run.finish()
        hashes.add(run.result["weights_sha256"])
        log = run.folder / "logs" / "generation_0" / "rank_0.log"
        scales.add(next(line for line in log.read_text().splitlines() if line.startswith("scale")))
    assert len(hashes) == 1
    assert len(scales) == 1
    assert 0 < float(scales.pop().split()[1]) < 2.0**24


def test_run_when_consistency_is_batch_then_the_batches_are_the_same_and_the_weights_nearly(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    losses = []
    for workers in (1, 3):
        run = start(*SIX, "elastic.consistency=batch", f"elastic.nproc_per_node={workers}", "trainer.max_epochs=2")
        run.finish()
        assert run.result["step"] == 2 * 4  # 1,437 samples in steps of 6 * 64
        losses.append(run.result["metrics"]["val/loss"])
        run.folder.rename(tmp_path / str(workers))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_run_when_consistency_is_none_and_a_worker_dies_then_it_resumes_inside_the_epoch(
    start: Callable[..., Run],
) -> None:
    run = start("elastic.consistency=none", "data.batch_size=8", "trainer.max_epochs=3")
    run.wait_for_checkpoint(120)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.finish()
    assert run.result["step"] == 3 * 90
    assert run.result["restarts"] == 1


ONE_STEP = """
from pathlib import Path
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from elastic_harness import ElasticConfig, ElasticStrategy

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(5, 1)

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) ** 2).mean()

    def on_after_backward(self):
        self.grads = [p.grad.clone() for p in self.parameters()]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["grads"] = self.grads

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    model, data = Line(), torch.arange(50.0).view(10, 5) / 50
    expected = Line()
    torch.nn.functional.mse_loss(expected.layer(data), torch.zeros(10, 1)).backward()
    strategy = ElasticStrategy(elastic=ElasticConfig(logical_world_size=3))  # 10 samples as 4, 3 and 3
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, strategy=strategy, default_root_dir=".", logger=False
    )
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=4))
    saved = torch.load(next(Path("elastic/checkpoints").glob("*.ckpt")))
    for found, parameter in zip(saved["grads"], expected.parameters()):
        torch.testing.assert_close(found, parameter.grad)
    print("steps", trainer.global_step)
"""


def test_script_when_ranks_have_different_numbers_of_samples_then_the_gradient_is_that_of_the_whole_batch(
    run_script: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "one_step.py"
    path.write_text(ONE_STEP)
    run = run_script(path)
    run.finish()
    assert "steps 1" in run.stdout
