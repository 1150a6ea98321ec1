"""The callback that both sides write their trace with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from peers import trace


class StepTrace(pl.Callback):
    """Appends a line to a trace after every optimizer step.

    Args:
        path: file of the trace.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Take the time."""
        trace.append(self._path, trace.Step(time.time(), trainer.global_rank, os.getpid(), trainer.global_step))
