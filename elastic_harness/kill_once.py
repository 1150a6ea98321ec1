"""A callback that kills its own worker, once in a run: how ``elastic-harness verify`` makes sure of a restart."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl


class KillOnce(pl.Callback):
    """Sends SIGKILL to its own process.

    Args:
        step: after this many optimizer steps.
        rank: in the worker of this rank.
        marker: file that remembers that it was done.
    """

    def __init__(self, step: int, rank: int, marker: str) -> None:
        self._step, self._rank, self._marker = step, rank, Path(marker)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Do it, if it is time."""
        if trainer.global_rank == self._rank and trainer.global_step >= self._step and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
