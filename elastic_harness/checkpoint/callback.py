"""The callback that decides when a checkpoint is due and which ones stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.states import TrainerFn

from elastic_harness.checkpoint import files
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
        on_saved: called on rank 0 with path and step when a file is safe under its final name.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, objective: ObjectiveConfig) -> None:
        self._folder = folder
        self._config = config
        self._objective = objective
        self._scores: dict[str, float] = {}
        self._saved_step = -1
        self._validated = False
        self.metrics: dict[str, float] = {}
        self.on_saved: Callable[[Path, int], None] | None = None

    @property
    def rescue(self) -> bool:
        """Whether an interrupted worker hands its state over."""
        return self._config.rescue

    @property
    def best_model_path(self) -> str:
        """Path of the checkpoint with the best objective; empty if there is none."""
        best = self._ranked()
        return str(self._folder / best[0]) if best else ""

    @property
    def best_model_score(self) -> float | None:
        """The objective of ``best_model_path``."""
        best = self._ranked()
        return self._scores[best[0]] if best else None

    def state_dict(self) -> dict[str, Any]:
        return {"scores": dict(self._scores), "metrics": dict(self.metrics), "validated": self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scores = dict(state_dict["scores"])
        self.metrics = dict(state_dict["metrics"])
        self._validated = state_dict["validated"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = getattr(trainer.strategy, "harness_state", None)
        if state is not None:
            checkpoint[CHECKPOINT_KEY] = state()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = trainer.global_step

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
            self._saved_step = trainer.global_step
            self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return kinds

    def write(self, state: dict[str, Any], kinds: list[files.Kind], step: int) -> None:
        """Write the checkpoints that are due, and remove those that are not to be kept."""
        for kind in kinds:
            path = files.path_for(self._folder, kind, step)
            files.write(state, path)
            if self.on_saved is not None:
                self.on_saved(path, step)
        self._prune()

    def _require_objective(self, trainer: pl.Trainer) -> None:
        metric, logged = self._objective.metric, trainer.callback_metrics
        if metric is not None and metric not in logged:
            raise ConfigError(
                f"objective.metric={metric} was not logged in an epoch with a validation: "
                f"{unknown(metric, logged, 'Logged')}"
            )

    def _is_time(self, trainer: pl.Trainer) -> bool:
        every = self._config.every_n_steps
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
        name = files.path_for(self._folder, "best", trainer.global_step).name
        self._scores[name] = score
        kept = self._ranked()[: self._config.keep_best]
        self._scores = {key: self._scores[key] for key in kept}
        return name in kept

    def _ranked(self) -> list[str]:
        sign = -1.0 if self._objective.direction == "max" else 1.0
        return sorted(self._scores, key=lambda name: (sign * self._scores[name], name))

    def _prune(self) -> None:
        steps = files.list_checkpoints(self._folder, "step")
        files.prune(self._folder, "step", steps[-self._config.keep_last :])
        files.prune(self._folder, "best", [self._folder / name for name in self._scores])
