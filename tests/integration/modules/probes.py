"""Modules and callbacks that show what happens in workers, or make things go wrong there."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.distributed import all_reduce
from torch.utils.data import DataLoader

from recipes.digits_mlp.module import DigitsData, DigitsMLP


class StepTrace(pl.Callback):
    """Appends a line for every training batch to a file: rank, pid, world, epoch, step, ids of the samples."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        line = {
            "rank": trainer.global_rank,
            "pid": os.getpid(),
            "world": trainer.world_size,
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "time": time.time(),
            "samples": [hash(row.numpy().tobytes()) for row in batch[0]],
        }
        with self.path.open("a") as trace:
            trace.write(json.dumps(line) + "\n")


class Gates(pl.Callback):
    """Holds the workers after certain steps until a file named after the step is there.

    Args:
        folder: of the files.
        steps: after which to wait.
    """

    def __init__(self, folder: str, steps: list[int]) -> None:
        self.folder, self.steps = Path(folder), steps

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        while trainer.global_step in self.steps and not (self.folder / str(trainer.global_step)).exists():
            time.sleep(0.01)


class LateRankZero(pl.Callback):
    """Kills rank 0 at the end of a step, before it logs, once rank 1 has finished the step and left a file.

    Args:
        path: of the file.
        step: number of the step.
    """

    def __init__(self, path: str, step: int) -> None:
        self.path, self.step = Path(path), step

    def _tell(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_rank == 1 and trainer.global_step == self.step:
            self.path.touch()

    on_train_batch_start = on_validation_start = _tell

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        while trainer.global_rank == 0 and trainer.global_step == self.step and not self.path.exists():
            time.sleep(0.01)
        if trainer.global_rank == 0 and trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class GlobalsProbe(pl.Callback):
    """Writes the process-wide settings that a worker took over, and whether its module was imported for it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        facts = {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "matmul_precision": torch.get_float32_matmul_precision(),
            "default_dtype": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "seed": os.environ.get("PL_GLOBAL_SEED"),
            "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            "start_method": multiprocessing.get_start_method(),
            "own_variable": os.environ.get("PROBE_VARIABLE"),
            "rank": trainer.global_rank,
        }
        if trainer.is_global_zero:
            self.path.write_text(json.dumps(facts))


class NeedsFile(pl.Callback):
    """Raises where a file is not there."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if not self.path.exists():
            raise FileNotFoundError(self.path)


class CollectiveTimeout(pl.Callback):
    """Writes how many seconds a collective may take."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        group: Any = torch.distributed.group.WORLD
        timeout = group._get_backend(torch.device("cpu")).options._timeout
        self.path.write_text(json.dumps(timeout.total_seconds()))


class RaisingMLP(DigitsMLP):
    """Raises in training on one rank, every time.

    Args:
        at_step: in the batch after this many steps.
        rank: on this rank.
    """

    def __init__(self, at_step: int = 0, rank: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at_step, self.rank = at_step, rank

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.at_step and self.global_rank == self.rank:
            raise RuntimeError("boom-7")
        return super().training_step(batch, batch_idx)


class EstimatingMLP(DigitsMLP):
    """Asks for the number of steps where it makes its optimizer, as schedulers do."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class HoldingMLP(DigitsMLP):
    """Stays in a C function that does not let other Python threads run, for longer than any test."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 25:
            ctypes.PyDLL(None).sleep(120)
        return super().training_step(batch, batch_idx)


class ReducingMLP(DigitsMLP):
    """Talks to the other workers inside of its training step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        all_reduce(loss.detach())
        return loss


class ChangingMLP(DigitsMLP):
    """Adds noise to a batch in a hook that is called once a step."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        batch[0].add_(torch.randn_like(batch[0]))


class LosslessMLP(DigitsMLP):
    """Leaves its second batch out."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if batch_idx != 1 else None


class UnpicklableMLP(DigitsMLP):
    """Holds something that no other process can have."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.net[0].activation_hook = lambda x: x


class ImportReportingMLP(DigitsMLP):
    """Writes, when a worker unpickles it, which process had imported this module."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def on_fit_start(self) -> None:
        if self.global_rank == 0:
            Path(self.path).write_text(json.dumps({"imported_by": IMPORTED_BY, "worker": os.getpid()}))


class LoadedDigits(DigitsData):
    """The digits, by way of one loader process a worker."""

    def train_dataloader(self) -> DataLoader[Any]:
        dataset = super().train_dataloader().dataset
        return DataLoader(dataset, self.batch_size, shuffle=True, num_workers=1, persistent_workers=True)


class ThreeLoadersMLP(DigitsMLP):
    """Validates on several loaders."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:  # type: ignore[override]
        images, labels = batch
        logits = self(images)
        self.log("val/loss", torch.nn.functional.cross_entropy(logits, labels), on_epoch=True)
        self.log("val/place", float(10 * dataloader_idx + batch_idx), reduce_fx="max", on_epoch=True)


class ThreeLoaders(DigitsData):
    """Validation data in three loaders of 8, 1 and 4 batches."""

    def val_dataloader(self) -> Any:
        dataset = super().val_dataloader().dataset
        return [DataLoader(torch.utils.data.Subset(dataset, range(n)), 8) for n in (60, 3, 32)]


class DroppingDigits(DigitsData):
    """The digits without the last, smaller batch."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(super().train_dataloader().dataset, self.batch_size, shuffle=True, drop_last=True)


IMPORTED_BY = os.getpid()
