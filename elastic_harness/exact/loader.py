"""The elastic loader: takes over a user's DataLoader and deals its samples to logical ranks.

Everything about how samples are loaded stays the user's (dataset, collate_fn, loader processes, pinning); which
samples, and with which random numbers, is a pure function of seed, epoch, step and logical rank. So a resume point is a
step number, and a sample that was loaded ahead and not trained on was never dealt.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from elastic_harness.exact.logical import Deal
from elastic_harness.exact.order import EpochOrder
from elastic_harness.exact.randomness import seed_generators
from elastic_harness.exact.refused import refuse_empty, refuse_inexact
from elastic_harness.stop_signals import Shielded


class Request(NamedTuple):
    """What a loader process is asked for: one batch, and what its random numbers are keyed by."""

    epoch: int
    step: int
    logical_rank: int
    ids: list[Any]


class _Samples(NamedTuple):
    request: Request
    items: list[Any]


@dataclass(frozen=True)
class Part:
    """The share of one hosted logical rank in a step.

    Args:
        logical_rank: its number.
        count: its samples. 0: the worker hosts no rank with samples in this step; the batch is that of logical rank
            0, computed for its hooks alone.
        batch: the collated batch.
    """

    logical_rank: int
    count: int
    batch: Any


@dataclass
class Step:
    """What this worker computes in one optimizer step.

    Args:
        epoch: number of the epoch.
        step: number of the step in it.
        size: samples of the step, over all logical ranks.
        active: logical ranks that have samples in it.
        parts: one for each hosted logical rank with samples, the lowest first.
    """

    epoch: int
    step: int
    size: int
    active: int
    parts: list[Part] = field(default_factory=list)


class KeyedDataset(Dataset[Any]):
    """A dataset whose random numbers are keyed by (seed, epoch, sample id).

    Args:
        dataset: the user's.
        seed: the run's.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitems__(self, request: Request) -> _Samples:
        """The samples of one batch."""
        items = []
        for sample in request.ids:
            seed_generators(self.seed, "sample", request.epoch, sample)
            try:
                items.append(self.dataset[sample])
            except Exception as error:
                _require_travels(error)
                raise
        return _Samples(request, items)


def _require_travels(error: Exception) -> None:
    """Raise another one if the error cannot be sent from a loader process, whose silence would be all there is."""
    try:
        pickle.dumps(type(error))
    except Exception:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class KeyedCollate:
    """A ``collate_fn`` whose random numbers are keyed by (seed, epoch, step, logical rank)."""

    def __init__(self, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self.collate = collate
        self.seed = seed

    def __call__(self, samples: Any) -> Any:
        """The batch of ``_Samples``."""
        request = samples.request
        seed_generators(self.seed, "collate", request.epoch, request.step, request.logical_rank)
        return self.collate(samples.items)


class _UsersDataset:
    """A ``worker_init_fn`` that lets the user's code find the user's dataset in ``get_worker_info()``."""

    def __init__(self, init: Callable[[int], None]) -> None:
        self.init = init

    def __call__(self, number: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it refuses to be set otherwise
        self.init(number)


class ElasticLoader:
    """Yields, for each step, the batch of the lowest logical rank hosted here; ``current`` holds all of them.

    Args:
        loader: the user's.
        seed: the run's.
        hosted: the logical ranks hosted here.
        logical_world_size: number of all logical ranks.
        position: asked when an epoch begins: the number of its steps that are done.
        on_load: called before the batches of a step are loaded.

    Raises:
        ConfigError: the loader cannot be taken over exactly, or an epoch has no step.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        seed: int,
        hosted: range,
        logical_world_size: int,
        position: Callable[[], int],
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        refuse_inexact(loader, "train_dataloader")
        assert loader.batch_size is not None
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self._seed = seed
        self._hosted = hosted
        self._position = position
        self._on_load = on_load
        self._epoch = 0
        self._order = EpochOrder(loader.sampler, seed, "train_dataloader")
        self.samples = self._order.length
        self._deal = Deal(self._order.length, loader.batch_size, logical_world_size, loader.drop_last)
        refuse_empty(self._deal)
        self._requests = _Requests()
        self._loader = keyed(loader, self._requests, seed)
        self.current: Step | None = None

    @property
    def sampler(self) -> ElasticLoader:
        """Where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration is about."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the position is a step number, which the loops have. Tells Lightning that it can resume."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``state_dict``."""

    def __len__(self) -> int:
        return self._deal.steps

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is drawn until Lightning wants the first batch, when its loops have been restored.
        epoch, first = self._epoch, self._position()
        order = self._order.draw(epoch)
        steps = [self._step(epoch, number) for number in range(first, len(self))]
        self._requests.plan = (self._request(order, step, part) for step in steps for part in step.parts)
        batches = iter(self._loader)
        for step in steps:
            self._on_load()
            step.parts = [Part(part.logical_rank, part.count, next(batches)) for part in step.parts]
            self.current = step
            lowest = step.parts[0]
            # For the transfer hooks of this batch, which Lightning calls.
            seed_generators(self._seed, "transfer", epoch, step.step, lowest.logical_rank)
            yield lowest.batch
            step.parts = []

    def _step(self, epoch: int, number: int) -> Step:
        deal, active = self._deal, self._deal.active(number)
        shares = {rank: deal.share(number, rank) for rank in self._hosted if rank < active}
        parts = [Part(rank, share.stop - share.start, None) for rank, share in shares.items()]
        return Step(epoch, number, deal.size(number), active, parts or [Part(0, 0, None)])

    def _request(self, order: Sequence[Any], step: Step, part: Part) -> Request:
        return Request(
            step.epoch, step.step, part.logical_rank, list(order[self._deal.share(step.step, part.logical_rank)])
        )


class _Requests:
    """The batch sampler of the loader that does the loading: hands out what is planned."""

    def __init__(self) -> None:
        self.plan: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.plan


def keyed(loader: DataLoader[Any], requests: Any, seed: int) -> DataLoader[Any]:
    """A loader that loads what ``requests`` yields as ``loader`` would, with keyed random numbers."""
    return DataLoader(
        KeyedDataset(loader.dataset, seed),
        batch_sampler=requests,
        num_workers=loader.num_workers,
        collate_fn=KeyedCollate(loader.collate_fn, seed),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=_UsersDataset(Shielded(loader.worker_init_fn)),
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
