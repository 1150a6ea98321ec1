"""What exact training refuses: each with the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterator

import pytorch_lightning as pl
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
from torch.nn import Embedding, EmbeddingBag, SyncBatchNorm
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from elastic_harness.errors import ConfigError
from elastic_harness.exact.logical import Deal

_SYNC_BATCH_NORM = (
    "model: SyncBatchNorm ({}) makes the workers talk inside a step: use BatchNorm, whose statistics are a logical "
    "rank's, or elastic.consistency=none."
)


def refuse_inexact_training(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse what cannot be exact, before any worker starts.

    Raises:
        ConfigError: with every reason, and the way out.
    """
    if problems := [*_trainer_problems(trainer), *_module_problems(module)]:
        raise ConfigError(problems)


def _trainer_problems(trainer: pl.Trainer) -> Iterator[str]:
    every = trainer.accumulate_grad_batches
    if every > 1 or any(isinstance(each, GradientAccumulationScheduler) for each in trainer.callbacks):  # type: ignore[attr-defined]
        yield (
            f"trainer.accumulate_grad_batches={every} must be 1: for the same batch raise elastic.logical_world_size, "
            "of which a worker hosts several."
        )
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        yield _SYNC_BATCH_NORM.format("trainer.sync_batchnorm=true")
    if getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
        yield (
            "strategy: ddp_comm_hook changes gradients on their way between workers, and here they are those of "
            "logical ranks, added by the harness: leave it out, or use elastic.consistency=none."
        )


def _module_problems(module: pl.LightningModule) -> Iterator[str]:
    if not module.automatic_optimization:
        yield (
            "model: automatic_optimization=False cannot be exact, since the harness has to see each gradient: use "
            "automatic optimization, or elastic.consistency=none."
        )
    for name in [name for name, each in module.named_modules() if isinstance(each, SyncBatchNorm)][:1]:
        yield _SYNC_BATCH_NORM.format(name)
    for name, each in module.named_modules():
        if isinstance(each, (Embedding, EmbeddingBag)) and each.sparse and each.weight.requires_grad:
            yield (
                f"model: {name}.weight gets sparse gradients, which cannot be added in the order of logical ranks: "
                "make the embedding with sparse=False, or use elastic.consistency=none."
            )
    for hook in ("training_step", "validation_step", "test_step"):
        if is_param_in_hook_signature(getattr(module, hook), "dataloader_iter", explicit=True):
            yield (
                f"model: {hook}(dataloader_iter) takes batches by itself, and here they are dealt to logical ranks: "
                "let it take batch, or use elastic.consistency=none."
            )


def refuse_inexact(loader: object, name: str) -> None:
    """Refuse what cannot be dealt to logical ranks.

    Raises:
        ConfigError: with the reason and the way out.
    """
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        reason, fix = f"it is a {type(loader).__name__}", "return one torch.utils.data.DataLoader"
    elif isinstance(loader.dataset, IterableDataset):
        reason, fix = "an iterable dataset has no samples that could be asked for", "use a dataset with __getitem__"
    elif loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        reason, fix = "it has a batch sampler of its own, or none", "give batch_size and, if need be, a sampler"
    elif isinstance(loader.sampler, DistributedSampler):
        reason, fix = "its DistributedSampler deals samples to workers", "leave the sampler to the harness"
    else:
        return
    raise ConfigError(inexact(name, reason, fix))


def inexact(name: str, reason: str, fix: str) -> str:
    """The sentence for a loader, by its name, that cannot be dealt."""
    return f"{name} cannot be dealt to logical ranks, since {reason}: {fix}, or use elastic.consistency=none."


def refuse_empty(deal: Deal) -> None:
    """Refuse an epoch without a step, or with logical ranks that never have a sample.

    Raises:
        ConfigError: with the arithmetic.
    """
    ranks, size = deal.logical_world_size, deal.batch_size * deal.logical_world_size
    if deal.steps == 0:
        raise ConfigError(
            f"train_dataloader has {deal.samples} samples, fewer than one step of {ranks} logical ranks times "
            f"batch_size={deal.batch_size} = {size}, and drop_last leaves a smaller one out: lower data.batch_size or "
            "elastic.logical_world_size."
        )
    if deal.samples < ranks:
        raise ConfigError(
            f"train_dataloader has {deal.samples} samples for elastic.logical_world_size={ranks} logical ranks, so "
            "some would never have one: lower elastic.logical_world_size."
        )
