"""Any torchvision classifier as a LightningModule. It knows nothing of how many machines train it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
import torchvision  # type: ignore[import-untyped]
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics.classification import MulticlassAccuracy

# Their auxiliary heads return a tuple in training; without init_weights torchvision warns of a new default.
_PLAIN_HEAD = {"aux_logits": False, "init_weights": True}
_MODEL_ARGUMENTS: dict[str, dict[str, bool]] = {"googlenet": _PLAIN_HEAD, "inception_v3": _PLAIN_HEAD}
_SKIPPED = {"train": "data/skipped_images", "val": "data/skipped_val_images"}


class ImageClassifier(pl.LightningModule):
    """A torchvision classifier with cross entropy and top-1/top-5 accuracy.

    A batch is normalised images ``(n, 3, height, width)`` and labels ``(n,)``. A third element, where there
    is one, is the number of images skipped as unreadable; its sum is logged as ``data/skipped_images``.

    Args:
        name: a name out of ``torchvision.models.list_models(module=torchvision.models)``.
        num_classes: outputs of the head.
        optimizer: called with parameter groups; needed for training only.
        scheduler: called with the optimizer and ``total_steps``, and stepped after each optimizer step; None
            keeps the learning rate.
        label_smoothing: share of the target spread over all classes in training (Szegedy et al. 2016).
        channels_last: whether images and weights are laid out channels last, faster for convolutions.
    """

    def __init__(
        self,
        name: str,
        num_classes: int,
        optimizer: Callable[..., Optimizer] | None = None,
        scheduler: Callable[..., LRScheduler] | None = None,
        label_smoothing: float = 0.0,
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"model.num_classes={num_classes} must be at least 2: raise it.")
        # Plain values only: a checkpoint has to load with weights_only=True.
        self.save_hyperparameters(ignore=["optimizer", "scheduler"])
        self.name = name
        self.num_classes = num_classes
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.label_smoothing = label_smoothing
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = _build(name, num_classes).to(memory_format=self.memory_format)
        self.val_top1, self.val_top5 = _accuracy(num_classes, 1), _accuracy(num_classes, 5)
        self.test_top1, self.test_top5 = _accuracy(num_classes, 1), _accuracy(num_classes, 5)

    @property
    def description(self) -> str:
        """One phrase for the header of a run."""
        return f"{self.name} with {self.num_classes} classes"

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, shape ``(n, num_classes)``."""
        # The type too: with trainer.precision=bf16-true the weights are not float32.
        dtype = next(self.model.parameters()).dtype
        scores: Tensor = self.model(images.to(dtype=dtype, memory_format=self.memory_format))
        return scores

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> Tensor:
        """Loss of one batch."""
        images, labels = batch[0], batch[1]
        loss = F.cross_entropy(self(images), labels, label_smoothing=self.label_smoothing)
        self.log("train/loss", loss, batch_size=len(labels))
        self._log_skipped("train", batch)
        return loss

    def validation_step(self, batch: Sequence[Any], batch_idx: int) -> None:
        """Loss and accuracy of one batch."""
        self._evaluate("val", batch, self.val_top1, self.val_top5)
        self._log_skipped("val", batch)

    def test_step(self, batch: Sequence[Any], batch_idx: int) -> None:
        """Loss and accuracy of one batch."""
        self._evaluate("test", batch, self.test_top1, self.test_top5)

    def on_train_end(self) -> None:
        """Say how many images were skipped, so that it is not only in the middle of the log."""
        train, val = (int(self.trainer.callback_metrics.get(key, 0)) for key in _SKIPPED.values())
        if train + val:
            rank_zero_info(
                f"{train + val} images skipped as unreadable in the last epoch: "
                f"{train} of training, {val} of validation."
            )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer over two parameter groups, and the schedule by step."""
        if self.optimizer is None:
            raise ValueError(
                "optimizer is not set, so the model cannot be trained: choose one, for example optimizer=sgd."
            )
        optimizer = self.optimizer(_parameter_groups(self.model))
        if self.scheduler is None:
            return optimizer
        total = self.trainer.estimated_stepping_batches
        if math.isinf(total):
            raise ValueError(
                "scheduler needs the length of the run: set trainer.max_epochs or trainer.max_steps, "
                "or leave the scheduler out with ~scheduler."
            )
        scheduler = self.scheduler(optimizer, total_steps=int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _evaluate(self, stage: str, batch: Sequence[Any], top1: MulticlassAccuracy, top5: MulticlassAccuracy) -> None:
        images, labels = batch[0], batch[1]
        count = len(labels)
        if count:
            scores = self(images)
            loss = F.cross_entropy(scores, labels)
            top1.update(scores, labels)
            top5.update(scores, labels)
        else:  # every image was skipped; logging stays the same on all ranks, with weight 0
            loss = torch.zeros((), device=self.device)
        self.log(f"{stage}/loss", loss, batch_size=count, sync_dist=True)
        self.log(f"{stage}/top1", top1, batch_size=count, prog_bar=True)
        self.log(f"{stage}/top5", top5, batch_size=count)

    def _log_skipped(self, stage: str, batch: Sequence[Any]) -> None:
        if len(batch) > 2:
            self.log(
                _SKIPPED[stage],
                float(batch[2]),
                on_step=False,
                on_epoch=True,
                reduce_fx="sum",
                sync_dist=True,
                batch_size=len(batch[1]),
            )


def _build(name: str, num_classes: int) -> nn.Module:
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"model.name={name} is not a torchvision classification model: {hint}"
            "List them with torchvision.models.list_models(module=torchvision.models)."
        )
    arguments = _MODEL_ARGUMENTS.get(name, {})
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **arguments)
    return model


def _accuracy(num_classes: int, top_k: int) -> MulticlassAccuracy:
    return MulticlassAccuracy(num_classes, top_k=min(top_k, num_classes), average="micro")


def _parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Norms and biases, which are the vectors, are not decayed (He et al. 2019, arXiv:1812.01187)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = {"params": [p for p in parameters if p.ndim > 1]}
    kept = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
    return [group for group in (decayed, kept) if group["params"]]
