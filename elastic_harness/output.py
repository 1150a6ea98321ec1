"""What comes back from the workers to the Trainer that was asked to fit, validate or test."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.states import TrainerFn

from elastic_harness.checkpoint.callback import ElasticCheckpoint


@dataclass(frozen=True)
class Output:
    """What rank 0 sends back to the Trainer of the launching process."""

    epoch: int
    results: Any
    trainer_state: Any
    loops: dict[str, Any]
    callback_metrics: dict[str, Any]
    callbacks: dict[str, Any]
    best_model_path: str
    state_dict: dict[str, Any] | None

    def to_bytes(self) -> bytes:
        """For the pipe to the agent."""
        buffer = io.BytesIO()
        torch.save(self, buffer)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Output:
        """The output that ``to_bytes`` gave, its tensors on the CPU."""
        # Sent by our own worker, not read from a file.
        output = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        assert isinstance(output, Output)
        return output


def collect(trainer: pl.Trainer, results: Any) -> Output:
    """The output of a worker's Trainer; every worker has to call it, since a metric's state may take a collective."""
    fitting = trainer.state.fn == TrainerFn.FITTING
    best = trainer.checkpoint_callback
    metrics: dict[str, Any] = dict(trainer.callback_metrics)
    if trainer.num_nodes > 1:
        metrics = trainer.strategy.broadcast(metrics)
    for callback in trainer.checkpoint_callbacks if fitting and not metrics else ():
        if isinstance(callback, ElasticCheckpoint):  # There was nothing left to train.
            metrics = {name: torch.tensor(value) for name, value in callback.metrics.items()}
    return Output(
        epoch=trainer.current_epoch,
        results=results,
        trainer_state=trainer.state,
        loops=trainer.fit_loop.state_dict(),
        callback_metrics=metrics,
        callbacks=call._call_callbacks_state_dict(trainer) if fitting else {},
        best_model_path=str(getattr(best, "best_model_path", "")),
        state_dict=trainer.lightning_module.state_dict() if fitting else None,
    )


def take_over(output: Output, trainer: pl.Trainer) -> None:
    """Put rank 0's result into the Trainer of this process."""
    if output.state_dict is not None:
        _load_weights(trainer, output.state_dict)
        trainer.fit_loop.load_state_dict(output.loops)
        trainer.fit_loop.restarting = False
    trainer.state = output.trainer_state
    trainer.callback_metrics.update(output.callback_metrics)
    with warnings.catch_warnings():
        # Said of every ModelCheckpoint that did not run here.
        warnings.filterwarnings("ignore", message="The dirpath has changed")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if callback.state_key in output.callbacks:
                callback.load_state_dict(output.callbacks[callback.state_key])
    if output.best_model_path and isinstance(trainer.checkpoint_callback, ModelCheckpoint):
        trainer.checkpoint_callback.best_model_path = output.best_model_path


def _load_weights(trainer: pl.Trainer, weights: dict[str, Any]) -> None:
    module = trainer.lightning_module
    if weights.keys() != module.state_dict().keys():
        module.configure_model()  # It made layers in the workers.
    different = module.load_state_dict(weights, strict=False)
    if different.unexpected_keys or different.missing_keys:
        warnings.warn(
            f"{type(module).__name__} has other layers in the workers than here: weights without a layer: "
            f"{different.unexpected_keys}, layers without weights: {different.missing_keys}. Make layers in __init__ "
            "or configure_model, or load the checkpoint to use the trained weights.",
            stacklevel=2,
        )
