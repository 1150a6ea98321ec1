"""What cannot be exact is refused before any worker starts, with the way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch import nn

from elastic_harness.errors import ConfigError
from elastic_harness.exact.refused import refuse_inexact_training


class Module(pl.LightningModule):
    def __init__(self, layer: nn.Module | None = None, *, automatic: bool = True) -> None:
        super().__init__()
        self.layer = layer or nn.Linear(2, 2)
        self.automatic_optimization = automatic


class Fetching(Module):
    def training_step(self, dataloader_iter: Any) -> Any:
        return next(dataloader_iter)


def trainer(every: int = 1, callbacks: tuple[Any, ...] = (), **strategy: Any) -> Any:
    return SimpleNamespace(
        accumulate_grad_batches=every, callbacks=list(callbacks), strategy=SimpleNamespace(**strategy)
    )


def test_training_when_it_can_be_exact_then_it_is_not_refused() -> None:
    frozen = nn.Embedding(5, 2, sparse=True).requires_grad_(False)
    refuse_inexact_training(trainer(_ddp_comm_hook=None, _layer_sync=None), Module(nn.Sequential(frozen)))


@pytest.mark.parametrize(
    ("asked", "module", "words"),
    [
        (trainer(2), Module(), ["accumulate_grad_batches=2 must be 1", "raise elastic.logical_world_size"]),
        (trainer(callbacks=(GradientAccumulationScheduler({0: 2}),)), Module(), ["accumulate_grad_batches"]),
        (trainer(), Module(automatic=False), ["automatic_optimization=False", "use automatic optimization"]),
        (trainer(), Module(nn.SyncBatchNorm(2)), ["SyncBatchNorm (layer)", "use BatchNorm"]),
        (trainer(_layer_sync=object()), Module(), ["SyncBatchNorm (trainer.sync_batchnorm=true)", "use BatchNorm"]),
        (trainer(_ddp_comm_hook=print), Module(), ["ddp_comm_hook", "leave it out"]),
        (trainer(), Module(nn.Embedding(5, 2, sparse=True)), ["layer.weight gets sparse gradients", "sparse=False"]),
        (trainer(), Fetching(), ["training_step(dataloader_iter)", "let it take batch"]),
        (trainer(), Module(nn.EmbeddingBag(5, 2, sparse=True)), ["layer.weight gets sparse gradients"]),
    ],
)
def test_training_when_it_cannot_be_exact_then_reason_and_way_out_are_given(
    asked: Any, module: pl.LightningModule, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_inexact_training(asked, module)
    (problem,) = raised.value.problems
    assert all(word in problem for word in words)


def test_training_when_several_things_cannot_be_exact_then_all_are_named() -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_inexact_training(trainer(3), Module(nn.Sequential(*map(nn.SyncBatchNorm, (2, 3))), automatic=False))
    assert len(raised.value.problems) == 3
