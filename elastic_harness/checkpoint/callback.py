"""The callback that decides when a checkpoint is due and which ones stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from elastic_harness.checkpoint import files, plain_state
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.config import CheckpointConfig, ObjectiveConfig

CHECKPOINT_KEY = "elastic_harness"
"""Where a checkpoint holds what the harness adds to Lightning's state."""


class ElasticCheckpoint(Checkpoint):
    """Writes a checkpoint every ``every_n_steps`` optimizer steps, after the last one, and when the objective improved.

    The harness adds it to every Trainer by itself. A checkpoint that falls due just before a validation is
    written after it, and one that falls due at the end of an epoch after the next step: Lightning does not make up
    for a validation, or the end of an epoch, that was pending in the state it resumes.

    Args:
        folder: where the files go.
        config: how often, and how many to keep.
        objective: the metric that ``keep_best`` goes by.
        fingerprint: what defines the run's result; goes into every manifest.

    Attributes:
        metrics: the Trainer's callback metrics at the last save.
        generation: the worker group it runs in.
        on_saved: called on rank 0 with path and step when a file is safe under its final name.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        config: CheckpointConfig,
        objective: ObjectiveConfig,
        fingerprint: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._config = config
        self._objective = objective
        self._fingerprint = fingerprint
        self._scores: dict[str, float] = {}
        self._saved_step = -1
        self._loads_again = False
        self.metrics: dict[str, float] = {}
        self.generation = 0
        self.on_saved: Callable[[str, int], None] | None = None

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
        return {"scores": dict(self._scores), "metrics": dict(self.metrics)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scores = dict(state_dict["scores"])
        self.metrics = dict(state_dict["metrics"])

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = getattr(trainer.strategy, "harness_state", None)
        if state is not None:
            checkpoint[CHECKPOINT_KEY] = state()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._due(trainer) and not _validation_follows(trainer) and not _epoch_ends(trainer):
            self._save(trainer, "step")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._keep_if_best(trainer)
        if self._due(trainer):
            self._save(trainer, "step")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step > self._saved_step or not self._folder.names():
            self._save(trainer, "step", last=True)

    def _due(self, trainer: pl.Trainer) -> bool:
        every = self._config.every_n_steps
        return every > 0 and trainer.global_step // every > self._saved_step // every

    def _save(self, trainer: pl.Trainer, kind: files.Kind, *, last: bool = False) -> None:
        step = self._saved_step = trainer.global_step
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        # Every rank takes part in making the state (a metric may synchronise); one writes it.
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if trainer.is_global_zero:
            facts = Facts(step, trainer.current_epoch, self.generation, self._fingerprint)
            checkpoint = plain_state.converted(checkpoint)
            if not self._loads_again:  # which is known for all of them once it is for one
                plain_state.refuse_what_does_not_load(checkpoint)
                self._loads_again = True
            saved = self._folder.write(checkpoint, kind, facts)
            self._prune()
            if self.on_saved is not None:
                self.on_saved(saved.path, step)
            if not last:
                self._folder.check_space(saved.manifest.size)

    def _keep_if_best(self, trainer: pl.Trainer) -> None:
        metric = self._objective.metric
        if metric is None or self._config.keep_best == 0:
            return
        # Rank 0's, so that all ranks decide alike also for a metric that is not synchronised.
        score = trainer.strategy.broadcast(float(trainer.callback_metrics.get(metric, math.nan)))
        if math.isnan(score):
            return
        name = files.name_of("best", trainer.global_step)
        self._scores[name] = score
        kept = self._ranked()[: self._config.keep_best]
        self._scores = {key: self._scores[key] for key in kept}
        if name in kept:
            self._save(trainer, "best")

    def _ranked(self) -> list[str]:
        sign = -1.0 if self._objective.direction == "max" else 1.0
        return sorted(self._scores, key=lambda name: (sign * self._scores[name], name))

    def _prune(self) -> None:
        self._folder.prune("step", self._folder.names("step")[-self._config.keep_last :])
        self._folder.prune("best", self._scores)


def _validation_follows(trainer: pl.Trainer) -> bool:
    """Whether Lightning will validate before the next training batch."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def _epoch_ends(trainer: pl.Trainer) -> bool:
    """Whether this batch is the last of several in its epoch."""
    return trainer.num_training_batches > 1 and trainer.fit_loop.epoch_loop._num_ready_batches_reached()
