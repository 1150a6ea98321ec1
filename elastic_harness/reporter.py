"""What a worker tells its agent of its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.trainer.states import TrainerFn

from elastic_harness.messages import Evaluated, Message, Phase, Progress, Resumed, StepTimes


class Reporter(Callback):
    """Keeps the shared record up to date, and reports where training starts and the end of each validation."""

    def __init__(self, progress: Progress, resumed_from: str | None, send: Callable[[Message], None]) -> None:
        self._progress = progress
        self._resumed_from = resumed_from
        self._send = send
        self._told_at = time.monotonic()

    def _update(self, trainer: pl.Trainer, phase: Phase) -> None:
        self._beat()
        self._progress.phase = phase
        self._progress.epoch = trainer.current_epoch

    def _beat(self, *_: Any, **__: Any) -> None:
        self._progress.beats += 1

    setup = on_sanity_check_start = on_load_checkpoint = on_save_checkpoint = _beat
    on_train_epoch_start = on_train_epoch_end = on_train_end = _beat
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = on_predict_batch_end = _beat

    def _start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Batches of another kind follow, the first of which may take longer."""
        self._update(trainer, Phase.STARTING)

    on_validation_start = on_test_start = on_predict_start = _start

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        self._progress.total_steps = -1 if total == float("inf") else int(total)
        self._update(trainer, Phase.STARTING)
        self._told_at = time.monotonic()
        self._progress.step = self._progress.begun = trainer.global_step
        self._send(Resumed(self._resumed_from, trainer.global_step))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._beat()
        self._progress.begun = trainer.global_step + 1

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._update(trainer, Phase.TRAINING)
        strategy: Any = trainer.strategy
        watchdog = strategy.watchdog
        if watchdog.enabled and time.monotonic() - self._told_at >= watchdog.straggler_seconds:
            self._told_at = time.monotonic()
            if seconds := strategy.take_step_seconds():
                self._send(StepTimes(seconds))
        # Reading the loss waits for a GPU, so not at every step.
        if trainer._logger_connector.should_update_logs and isinstance(outputs, dict) and "loss" in outputs:
            self._progress.loss = float(outputs["loss"])

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        self._update(trainer, Phase.EVALUATING)

    def on_test_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        self._update(trainer, Phase.EVALUATING)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._send(Evaluated(trainer.current_epoch, trainer.global_step, metrics))
            self._update(trainer, Phase.TRAINING)
        else:
            self._update(trainer, Phase.STARTING)
