"""Points that the rank 0 before may not have written are written again, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elastic_harness.curves import ALL_WRITTEN, Curves
from elastic_harness.messages import Progress


class Worker:
    """A worker's curves, and what it logs in them."""

    def __init__(self, folder: Path, written: int, state: dict[str, Any], steps: int = 0) -> None:
        self.logger = TensorBoardLogger(folder, "tensorboard", "", default_hp_metric=False)
        self.loop = SimpleNamespace(_batches_that_stepped=steps)
        trainer: Any = SimpleNamespace(loggers=[self.logger], fit_loop=SimpleNamespace(epoch_loop=self.loop))
        self.progress = Progress()
        self.curves = Curves(trainer, self.progress, written)
        if steps:
            self.curves.drop_from(steps)
        self.curves.begin(state)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            step = self.loop._batches_that_stepped
            self.logger.log_metrics({"loss": float(step)}, step)
            self.logger.log_metrics({"by_epoch": 1.0}, step // 4)
            self.loop._batches_that_stepped += 1
            self.curves.reach_boundary()


def points(folder: Path, tag: str) -> list[int]:
    accumulator = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars(tag)]


def test_curves_when_the_last_points_were_not_written_then_they_are_and_no_other_is_dropped(tmp_path: Path) -> None:
    whole = Worker(tmp_path / "other", ALL_WRITTEN, {})
    first = Worker(tmp_path, ALL_WRITTEN, {})
    first.train(9)
    whole.train(10)  # a worker that finished the tenth step, whose state is gone on from
    state = whole.curves.state_dict()
    Worker(tmp_path, first.progress.logged, state, steps=10).train(2)
    assert points(tmp_path, "loss") == list(range(12))
    assert points(tmp_path, "by_epoch")[:8] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_curves_when_all_was_written_then_nothing_is_written_again(tmp_path: Path) -> None:
    first = Worker(tmp_path, ALL_WRITTEN, {})
    first.train(10)
    Worker(tmp_path, first.progress.logged, first.curves.state_dict(), steps=10).train(2)
    assert points(tmp_path, "loss") == list(range(12))


def test_curves_when_it_is_not_known_what_was_written_then_no_point_is_shown_twice(tmp_path: Path) -> None:
    first = Worker(tmp_path, ALL_WRITTEN, {})
    first.train(10)
    Worker(tmp_path, 0, first.curves.state_dict(), steps=10).train(2)
    assert points(tmp_path, "loss") == list(range(12))


def test_state_when_many_steps_are_logged_then_it_holds_the_last_few(tmp_path: Path) -> None:
    worker = Worker(tmp_path, ALL_WRITTEN, {})
    worker.train(100)
    assert len(worker.curves.state_dict()["calls"]) == 8
