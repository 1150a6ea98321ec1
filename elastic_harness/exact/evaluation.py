"""Evaluation whose numbers do not depend on how many workers there are.

Batch j is always samples ``[j * b, (j + 1) * b)``, evaluated whole by one worker, for logical rank ``j % S`` of S. What
its step logs is written down, and at the end combined by every worker in the order of the batches, as one worker would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop
from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import DataLoader

from elastic_harness.errors import ConfigError
from elastic_harness.exact.loader import Request, keyed
from elastic_harness.exact.metrics import LogicalMetric, logical_metrics, take_changes, updated_at
from elastic_harness.exact.order import EpochOrder
from elastic_harness.exact.randomness import seed_generators
from elastic_harness.exact.refused import refuse_inexact
from elastic_harness.exact.step_log import Record, Recorder, Told, replay, start_gather, taken_in


class EvaluationLoader:
    """This worker's batches of an evaluation; ``batch_index`` is the number of the newest one among all.

    Its length is the largest number of batches of any worker, so that all workers run the loop.

    Args:
        loader: the user's.
        name: where it came from.
        seed: the run's.
        rank: rank of this worker.
        world_size: number of workers.
        logical_world_size: number of logical ranks.
        limit: batches of all workers, or a share of them.

    Raises:
        ConfigError: the loader cannot be taken over exactly.
    """

    def __init__(
        self,
        loader: object,
        name: str,
        seed: int,
        rank: int,
        world_size: int,
        logical_world_size: int,
        limit: float | None,
    ) -> None:
        refuse_inexact(loader, name)
        assert isinstance(loader, DataLoader)
        assert loader.batch_size is not None
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self.batch_index = 0
        self._name = name
        self._seed = seed
        self._order = EpochOrder(loader.sampler, seed, name)
        batches = len(loader)
        self.batches = (
            batches if limit is None else min(batches, limit if isinstance(limit, int) else int(batches * limit))
        )
        dealt = [[j for j in range(self.batches) if j % logical_world_size % world_size == r] for r in (0, rank)]
        self._length, self._mine = len(dealt[0]), dealt[1]
        self._logical_world_size = logical_world_size
        self._requests: list[Request] = []
        self._loader = keyed(loader, self._requests, seed)

    @property
    def logical_rank(self) -> int:
        """For which logical rank the newest batch is evaluated."""
        return self.batch_index % self._logical_world_size

    def samples(self) -> int:
        """Samples in the newest batch."""
        return len(range(*self._slice(self.batch_index).indices(self._order.length)))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        order = self._order.draw(0)
        self._requests[:] = [Request(0, index, 0, list(order[self._slice(index)])) for index in self._mine]
        for index, batch in zip(self._mine, self._loader, strict=True):
            self.batch_index = index
            seed_generators(self._seed, "transfer", self._name, index)
            yield batch

    def _slice(self, index: int) -> slice:
        return slice(index * self.batch_size, (index + 1) * self.batch_size)


class ExactEvaluationLoop(_EvaluationLoop):
    """Lightning's loop, with the results of all workers in it when it ends.

    A loop becomes one of these by ``install``.
    """

    records: list[Record]
    metrics: dict[str, LogicalMetric]
    logged: Counter[int]
    """Batches logged so far, by the number of their loader."""

    def setup_data(self) -> None:
        super().setup_data()
        if self._combined_loader is not None and self.num_dataloaders > 1 and not self._is_sequential:
            raise ConfigError(
                f"{self._stage.dataloader_prefix}_dataloader: a CombinedLoader of mode={self._combined_loader._mode!r} "
                "evaluates batches of several loaders together, and which ones would depend on the number of workers: "
                "use mode='sequential' or a dataset that holds the pairs, or elastic.consistency=none."
            )

    def _evaluation_step(self, batch: Any, batch_idx: int, dataloader_idx: int, *args: Any) -> None:
        # With its hooks, where callbacks update torchmetrics objects, too.
        place = ("evaluate", self._loaders[dataloader_idx].logical_rank)
        with updated_at(self.metrics.values(), place):
            super()._evaluation_step(batch, batch_idx, dataloader_idx, *args)

    def step(self, step: Any, args: tuple[Any, ...], seed: int) -> Any:
        """Run a ``validation_step`` or ``test_step`` and write down what it logs.

        Args:
            step: the module's method.
            args: the batch, and maybe ``batch_idx`` and ``dataloader_idx``.
            seed: the run's.
        """
        results = self._results
        index = results.dataloader_idx or 0
        loader = self._loaders[index]
        hook = getattr(self.trainer.lightning_module, "test_step" if self.trainer.testing else "validation_step")
        if len(args) > 1 and is_param_in_hook_signature(hook, "batch_idx", min_args=2):
            args = (args[0], loader.batch_index, *args[2:])
        seed_generators(seed, "evaluate", index, loader.batch_index)
        self._results = recorder = Recorder(results, loader.batch_index, loader.samples())
        try:
            output = step(*args)
        finally:
            self._results = results
        self.records += recorder.records
        return output

    def on_save_checkpoint(self) -> dict[str, Any]:
        return {**super().on_save_checkpoint(), "logged": dict(self.logged)}

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        super().on_load_checkpoint(state_dict)
        self.logged = Counter(state_dict.get("logged", {}))

    def on_run_start(self) -> None:
        self.records, self.metrics = [], logical_metrics(self.trainer.lightning_module)
        super().on_run_start()

    def on_run_end(self) -> Any:
        records = taken_in(start_gather(Told(self.records, take_changes(self.metrics)))(), self.metrics)
        self.records = []
        several = self.num_dataloaders > 1
        for index in range(self.num_dataloaders):
            self._results.dataloader_idx = index if several else None
            mine = [record for record in records if record.dataloader_idx == index]
            for batch, same in groupby(mine, key=lambda record: record.place):
                replay(same, self._results, self.trainer.lightning_module)
                self._log_by_step(self.logged[index] + batch)
            if not self.trainer.sanity_checking:
                self.logged[index] += self._loaders[index].batches
            super()._store_dataloader_outputs()
        return super().on_run_end()

    def _log_by_step(self, step: int) -> None:
        """Log what was logged with ``on_step`` in the newest batch."""
        if not self.trainer.sanity_checking:
            self.trainer._logger_connector.log_metrics(self._results.metrics(on_step=True)["log"], step=step)

    @property
    def _loaders(self) -> list[EvaluationLoader]:
        assert self._combined_loader is not None
        return self._combined_loader.flattened

    def _store_dataloader_outputs(self) -> None:
        """Not yet: another worker may still be at this loader. ``on_run_end`` does it."""


def install(trainer: pl.Trainer) -> None:
    """Have a worker's Trainer evaluate exactly."""
    for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
        # The loop was made with the Trainer; all it holds stays.
        loop.__class__ = ExactEvaluationLoop
        vars(loop)["logged"] = Counter()


def limit_of(trainer: pl.Trainer, kind: str) -> float | None:
    """``limit_val_batches`` or ``limit_test_batches``, by its ``kind``; it means all workers' batches together."""
    name = f"limit_{kind}_batches"
    limit: float | None = getattr(trainer, name)
    # Lightning would take the share once more, of this worker's part.
    if isinstance(limit, float):
        setattr(trainer, name, 1.0)
    return limit
