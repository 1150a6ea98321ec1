"""Kills a worker in the middle of things."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import WeightAveraging

from elastic_harness.checkpoint import callback, election
from elastic_harness.exact.bucket import BucketSum


class FaultInjector(pl.Callback):
    """Sends a signal to its own worker in a phase of a step; each fault once.

    Args:
        folder: remembers which faults have happened.
        faults: ``PHASE:STEP:RANK``: when so many steps are finished, on that rank. Phases: ``election``, ``loading``,
            ``forward``, ``backward``, ``reduction``, ``update``, ``batch_end``, ``validation``, ``epoch_end``,
            ``saving``.
        number: the signal.
    """

    def __init__(self, folder: str, faults: list[str], number: int = signal.SIGKILL) -> None:
        self.folder, self.faults, self.number = Path(folder), faults, number
        self.trainer: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _before(election, "elect", lambda place, *_: self.strike_at("election", place.resume_step, place.rank))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.trainer = trainer
        _before(BucketSum, "finish", lambda *_: self.strike("reduction"))
        _before(callback, "write_state", lambda *_: self.strike("saving"))

    def strike(self, phase: str) -> None:
        self.strike_at(phase, self.trainer.global_step, self.trainer.global_rank)

    def strike_at(self, phase: str, step: int, rank: int) -> None:
        fault = f"{phase}:{step}:{rank}"
        marker = self.folder / fault.replace(":", "_")
        if fault in self.faults and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), self.number)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        self.strike_at("loading", checkpoint["global_step"], trainer.global_rank)

    def on_train_batch_start(self, *_: Any) -> None:
        self.strike("forward")

    def on_before_backward(self, *_: Any) -> None:
        self.strike("backward")

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.strike("update")

    def on_train_batch_end(self, *_: Any) -> None:
        self.strike("batch_end")

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.strike("validation")

    def on_train_epoch_end(self, *_: Any) -> None:
        self.strike("epoch_end")


def _before(owner: Any, name: str, action: Callable[..., None]) -> None:
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        action(*args)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


class Averaging(WeightAveraging):
    """An exponential moving average of the weights, which a validation uses in their place."""

    def __init__(self) -> None:
        super().__init__(avg_fn=_average)


def _average(averaged: torch.Tensor, current: torch.Tensor, _: Any) -> torch.Tensor:
    return averaged.lerp(current, 0.1) if averaged.is_floating_point() else current.clone()
