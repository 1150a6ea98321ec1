"""Models and data that fail on rank 1 when 20 steps are finished."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from elastic_harness.agent import ElasticAgent
from recipes.digits_mlp.module import DigitsData, DigitsMLP

STEP = 20


class OwnError(Exception):
    """An exception with a name of its own."""


def fail(fault: str) -> None:
    """Do what the fault says: ``raise:TYPE``, ``exit:CODE``, ``signal:NAME``, ``collective`` or ``hang``."""
    kind, _, name = fault.partition(":")
    if kind == "raise":
        raise {"OwnError": OwnError, "StopIteration": StopIteration, "ValueError": ValueError}[name]("boom-7")
    if kind == "exit":
        sys.exit(int(name))
    if kind == "signal":
        os.kill(os.getpid(), signal.Signals[name])
    if kind == "collective":
        dist.barrier()
    while True:
        time.sleep(3600)


class FaultyMLP(DigitsMLP):
    """Fails in its training step.

    Args:
        fault: see ``fail``.
        step: when so many steps are finished.
        once: path of a file that remembers that it has failed; without one it fails each time.
    """

    def __init__(self, fault: str, step: int = STEP, once: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault, self.step, self.once = fault, step, once

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.step and self.global_rank == 1 and is_due(self.once):
            fail(self.fault)
        return super().training_step(batch, batch_idx)


class FailingOftenMLP(DigitsMLP):
    """Fails again and again, each time at another step.

    Args:
        folder: remembers which failures have happened.
        faults: ``STEP:RANK:FAULT``, see ``fail``.
    """

    def __init__(self, folder: str, faults: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder, self.faults = folder, faults

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for fault in self.faults:
            step, rank, how = fault.split(":", 2)
            due = (self.global_step, self.global_rank) == (int(step), int(rank))
            if due and is_due(f"{self.folder}/failed_{step}"):
                fail(how)
        return super().training_step(batch, batch_idx)


class SlowMLP(DigitsMLP):
    """Takes longer on rank 1."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == 1:
            time.sleep(0.1)
        return super().training_step(batch, batch_idx)


class SluggishMLP(DigitsMLP):
    """Takes its time for the first batch of a training and of each validation."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 0:
            time.sleep(4)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            time.sleep(4)
        return super().validation_step(batch, batch_idx)


class FaultySet(Dataset[Any]):
    """Fails in a loader process, once, when half of the samples have been asked for."""

    def __init__(self, dataset: Any, fault: str, once: str) -> None:
        self.dataset, self.fault, self.once, self.asked = dataset, fault, once, 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        if self.asked > len(self.dataset) // 4 and is_due(self.once):
            fail(self.fault)
        return self.dataset[index]


class FaultyDigits(DigitsData):
    """The digits, by way of a loader process that fails.

    Args:
        fault: see ``fail``.
        once: path of a file that remembers that it has failed.
    """

    def __init__(self, fault: str, once: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault, self.once = fault, once

    def train_dataloader(self) -> DataLoader[Any]:
        dataset = FaultySet(super().train_dataloader().dataset, self.fault, self.once)
        return DataLoader(dataset, self.batch_size, shuffle=True, num_workers=1, persistent_workers=True)


class WithBrokenAgent(DigitsMLP):
    """Has a bug put into the process that supervises the workers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

        def broken(agent: ElasticAgent, *_: Any) -> Any:
            if agent.course.step >= STEP:
                raise ZeroDivisionError("bug-7")
            return monitor(agent, *_)

        monitor = ElasticAgent._monitor_workers
        ElasticAgent._monitor_workers = broken  # type: ignore[method-assign]


def is_due(once: str | None) -> bool:
    """Whether to fail now; remembers it."""
    if once is None:
        return True
    try:
        Path(once).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
