"""Kills a worker in the middle of things."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from elastic_harness.checkpoint import node_memory
from elastic_harness.exact.bucket import BucketSum


class FaultInjector(pl.Callback):
    """Sends a signal to its own worker in a phase of a step; each fault once.

    Args:
        folder: remembers which faults have happened.
        faults: ``PHASE:STEP:RANK``: when so many steps are finished, on that rank. Phases: ``loading``, ``forward``,
            ``backward``, ``reduction``, ``update``, ``batch_end``, ``validation``, ``epoch_end``, ``saving``.
        number: the signal.
    """

    def __init__(self, folder: str, faults: list[str], number: int = signal.SIGKILL) -> None:
        self.folder, self.faults, self.number = Path(folder), faults, number
        self.trainer: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.trainer = trainer
        _before(BucketSum, "finish", lambda: self.strike("reduction"))
        _before(node_memory, "write_state", lambda: self.strike("saving"))

    def strike(self, phase: str) -> None:
        fault = f"{phase}:{self.trainer.global_step}:{self.trainer.global_rank}"
        marker = self.folder / fault.replace(":", "_")
        if fault in self.faults and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), self.number)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        fault = f"loading:{checkpoint['global_step']}:{trainer.global_rank}"
        marker = self.folder / fault.replace(":", "_")
        if fault in self.faults and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), self.number)

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


def _before(owner: Any, name: str, action: Any) -> None:
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        action()
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)
