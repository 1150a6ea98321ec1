"""The callback that decides when a checkpoint is due and which ones stay."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.states import TrainerFn

from elastic_harness.checkpoint import files, plain_state
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.node_memory import write_state
from elastic_harness.checkpoint.writer import Capture
from elastic_harness.config import CheckpointConfig, ObjectiveConfig
from elastic_harness.config.spelling import unknown
from elastic_harness.errors import ConfigError
from elastic_harness.loops import Next, is_last_of_step

CHECKPOINT_KEY = "elastic_harness"
"""Where a checkpoint holds what the harness adds to Lightning's state."""


class ElasticCheckpoint(Checkpoint):
    """Decides when a checkpoint is written: every ``every_n_steps`` steps, at the end, and when the objective improved.

    The harness adds it to every Trainer by itself, and tells it of each boundary. A step has one checkpoint, taken at
    its last boundary: after a validation, and at the end of an epoch after its hooks.

    Args:
        folder: where the files go.
        config: how often, and how many to keep.
        objective: the metric that ``keep_best`` goes by.

    Attributes:
        metrics: the Trainer's callback metrics at the last save.
    """

    def __init__(self, folder: CheckpointFolder, config: CheckpointConfig, objective: ObjectiveConfig) -> None:
        self._folder = folder
        self._config = config
        self._objective = objective
        self._scores: dict[str, float] = {}
        self._saved_step, self._saved_at = 0, math.inf
        self._validated = False
        self.metrics: dict[str, float] = {}

    @property
    def rescue(self) -> bool:
        """Whether an interrupted worker hands its state over."""
        return self._config.rescue

    @property
    def best_model_path(self) -> str:
        """Path of the checkpoint with the best objective; empty if there is none."""
        best = self._ranked()
        return self._folder.path(best[0]) if best else ""

    @property
    def best_model_score(self) -> float | None:
        """The objective of ``best_model_path``."""
        best = self._ranked()
        return self._scores[best[0]] if best else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "scores": dict(self._scores),
            "metrics": dict(self.metrics),
            "saved_step": self._saved_step,
            "validated": self._validated,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scores = dict(state_dict["scores"])
        self.metrics = dict(state_dict["metrics"])
        self._saved_step = state_dict["saved_step"]
        self._validated = state_dict["validated"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = getattr(trainer.strategy, "harness_state", None)
        if state is not None:
            checkpoint[CHECKPOINT_KEY] = state()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_at = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking

    def due(self, trainer: pl.Trainer, following: Next) -> list[files.Kind]:
        """The kinds of checkpoint to write at a boundary; every rank has to ask."""
        if not is_last_of_step(trainer, following):
            return []
        validated, self._validated = self._validated, False
        if validated and following is Next.EPOCH:
            self._require_objective(trainer)
        kinds: list[files.Kind] = ["best"] if validated and self._is_best(trainer) else []
        if self._is_time(trainer) or (following is Next.END and trainer.global_step > self._saved_step):
            kinds.append("step")
        if kinds:
            self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
            self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return kinds

    def capture(self, state: dict[str, Any], kinds: list[files.Kind], places: Sequence[Path], *, last: bool) -> Capture:
        """Put a state that is due into the node's memory, from where the agent writes it."""
        state = plain_state.converted(state)
        step: int = state["global_step"]
        path = write_state(state, step, places)
        return Capture(str(path), step, state["epoch"], tuple(kinds), tuple(self._scores), last)

    def _require_objective(self, trainer: pl.Trainer) -> None:
        metric, logged = self._objective.metric, trainer.callback_metrics
        if metric is not None and metric not in logged:
            raise ConfigError(
                f"objective.metric={metric} was not logged in an epoch with a validation: "
                f"{unknown(metric, logged, 'Logged')}"
            )

    def _is_time(self, trainer: pl.Trainer) -> bool:
        every, seconds = self._config.every_n_steps, self._config.every_seconds
        if seconds is not None and time.monotonic() - self._saved_at >= seconds:
            return trainer.global_step > self._saved_step
        return every > 0 and trainer.global_step // every > self._saved_step // every

    def _is_best(self, trainer: pl.Trainer) -> bool:
        metric = self._objective.metric
        if metric is None or self._config.keep_best == 0:
            return False
        score = float(trainer.callback_metrics.get(metric, math.nan))
        if not trainer.strategy.is_exact:  # type: ignore[attr-defined]
            # Rank 0's, so that all ranks decide alike also for a metric that is not synchronised.
            score = trainer.strategy.broadcast(score)
        if math.isnan(score):
            return False
        name = files.name_of("best", trainer.global_step)
        self._scores[name] = score
        kept = self._ranked()[: self._config.keep_best]
        self._scores = {key: self._scores[key] for key in kept}
        return name in kept

    def _ranked(self) -> list[str]:
        sign = -1.0 if self._objective.direction == "max" else 1.0
        return sorted(self._scores, key=lambda name: (sign * self._scores[name], name))
