"""The elastic loader deals the user's samples by (seed, epoch, step, logical rank), and refuses what it cannot deal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from elastic_harness.errors import ConfigError
from elastic_harness.exact.evaluation import EvaluationLoader
from elastic_harness.exact.loader import ElasticLoader, Part, Step
from elastic_harness.exact.logical import hosted

RANKS = 4


class Noise(Dataset[Any]):
    """Each sample is its number and three random ones."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class OwnBatches(BatchSampler):
    pass


class Rewritten(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


def mixed(samples: list[Any]) -> Any:
    return [*samples, ("collated", random.random())]


def steps(loader: DataLoader[Any], world: int, epoch: int = 0, first: int = 0, ranks: int = RANKS) -> list[list[Step]]:
    """What each worker computes in each step."""
    found: list[list[Step]] = []
    for rank in range(world):
        elastic = ElasticLoader(loader, 7, hosted(rank, world, ranks), ranks, lambda: first)
        elastic.set_epoch(epoch)
        mine = []
        for batch in elastic:
            assert elastic.current is not None
            assert elastic.current.parts[0].batch == batch
            step = elastic.current
            mine.append(Step(step.epoch, step.step, step.size, step.active, list(step.parts)))
        found.append(mine)
    return found


def parts(loader: DataLoader[Any], world: int, **options: Any) -> dict[tuple[int, int], Part]:
    return {
        (step.step, part.logical_rank): part
        for mine in steps(loader, world, **options)
        for step in mine
        for part in step.parts
        if part.count
    }


def loader_of(length: int = 45, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noise(length), **{"batch_size": 5, "shuffle": True, "collate_fn": mixed, **options})


@pytest.mark.parametrize("world", [2, 3, 4])
def test_loader_when_any_number_of_workers_loads_then_every_batch_is_the_same(world: int) -> None:
    assert parts(loader_of(), world) == parts(loader_of(), 1)


def test_loader_when_loader_processes_load_then_every_batch_is_the_same() -> None:
    processes = loader_of(num_workers=1, persistent_workers=True, prefetch_factor=3)
    assert parts(processes, 1) == parts(loader_of(), 1)


def test_loader_when_resumed_then_goes_on_with_the_batches_of_that_step() -> None:
    whole = parts(loader_of(), 1, epoch=3)
    assert parts(loader_of(), 2, epoch=3, first=1) == {key: part for key, part in whole.items() if key[0] >= 1}


def test_loader_when_the_epoch_is_another_then_order_and_noise_are_d02() -> None:
    first, second = parts(loader_of(), 1, epoch=0), parts(loader_of(), 1, epoch=1)
    assert first[0, 0] != second[0, 0]
    noise = [
        {sample[0]: sample[1:] for part in found.values() for sample in part.batch[:-1]} for found in (first, second)
    ]
    assert noise[0].keys() == noise[1].keys() == set(range(45))
    assert all(noise[0][sample] != noise[1][sample] for sample in range(45))


def test_loader_when_fewer_samples_than_ranks_are_left_then_the_other_workers_get_rank_0s_batch_without_weight() -> (
    None
):
    first, second = steps(loader_of(21), 2)
    assert (first[1].size, first[1].active) == (second[1].size, second[1].active) == (1, 1)
    assert [part.count for part in first[1].parts] == [1]
    assert [(part.logical_rank, part.count) for part in second[1].parts] == [(0, 0)]
    assert second[1].parts[0].batch == first[1].parts[0].batch


def test_loader_when_the_sampler_is_weighted_then_it_is_drawn_anew_and_alike_each_epoch() -> None:
    def weighted() -> DataLoader[Any]:
        sampler = WeightedRandomSampler([1.0] * 20 + [0.0] * 25, 40)
        return loader_of(shuffle=None, sampler=sampler)

    first = parts(weighted(), 1, epoch=1)
    assert first == parts(weighted(), 2, epoch=1)
    assert first != parts(weighted(), 1, epoch=2)
    assert all(sample[0] < 20 for part in first.values() for sample in part.batch[:-1])


def test_loader_when_the_dataset_is_a_subset_then_each_sample_has_its_own_noise() -> None:
    whole = loader_of(8, shuffle=False)
    subset = DataLoader(Subset(Noise(8), range(8)), 5, collate_fn=mixed)
    assert parts(subset, 1, ranks=1) == parts(whole, 1, ranks=1)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([1, 2], "it is a list"),
        (Rewritten(Noise(9)), "it is a Rewritten"),
        (DataLoader(Endless()), "an iterable dataset"),
        (DataLoader(Noise(9), batch_size=None), "a batch sampler of its own, or none"),
        (
            DataLoader(Noise(9), batch_sampler=OwnBatches(SequentialSampler(Noise(9)), 3, False)),
            "a batch sampler of its",
        ),
        (DataLoader(Noise(9), sampler=DistributedSampler(Noise(9), 2, 0)), "DistributedSampler"),
        (DataLoader(Lengthless()), "its length is unknown"),
    ],
)
def test_loader_when_it_cannot_be_dealt_then_reason_and_way_out_are_given(loader: Any, words: str) -> None:
    for kind in (
        lambda: ElasticLoader(loader, 7, range(2), 2, lambda: 0),
        lambda: EvaluationLoader(loader, "val_dataloader", 7, 0, 1, 2, None),
    ):
        with pytest.raises(ConfigError) as raised:
            kind()
        assert words in str(raised.value)
        assert "elastic.consistency=none" in str(raised.value)


def test_loader_when_the_length_changes_then_it_is_refused() -> None:
    class Growing(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(46))

    with pytest.raises(ConfigError, match="gave 46 samples in epoch 2 and 45 before"):
        parts(loader_of(shuffle=None, sampler=Growing(Noise(45))), 1, epoch=2)


class OwnGenerator(SequentialSampler):
    """Shuffles with a generator whose state depends on what was drawn before."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.generator = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.permutation(45).tolist())


class Keyed(SequentialSampler):
    """Shuffles with the global generator of numpy, and one of its own made out of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        own = np.random.default_rng(self.epoch).permutation(45)
        return iter(own[np.random.permutation(45)].tolist())


def test_loader_when_a_sampler_has_a_generator_of_its_own_then_it_is_refused() -> None:
    sampler = OwnGenerator(Noise(45))
    with pytest.raises(ConfigError, match="its OwnGenerator gives another order each time") as raised:
        parts(loader_of(shuffle=None, sampler=sampler), 1, epoch=1)
    assert "elastic.consistency=none" in str(raised.value)


def test_loader_when_a_sampler_draws_by_key_or_epoch_then_the_order_is_the_same_on_every_worker() -> None:
    def order(world: int, epoch: int) -> Any:
        return parts(loader_of(shuffle=None, sampler=Keyed(Noise(45))), world, epoch=epoch)

    assert order(1, 1) == order(3, 1)
    assert order(1, 1) != order(1, 2)


class Opened(Noise):
    """Its samples come from what its loader process opened."""

    source = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return index, info.dataset.source, type(info.dataset).__name__


def open_source(number: int) -> None:
    info: Any = get_worker_info()
    info.dataset.source = 7 + number


def test_loader_when_a_loader_process_asks_for_its_dataset_then_it_is_the_users() -> None:
    loader = DataLoader(Opened(8), 4, num_workers=1, worker_init_fn=open_source, collate_fn=list)
    found = [sample for part in parts(loader, 1, ranks=1).values() for sample in part.batch]
    assert found == [(index, 7, "Opened") for index in range(8)]


@pytest.mark.parametrize(
    ("length", "drop_last", "words"),
    [
        (19, True, "19 samples, fewer than one step of 4 logical ranks times batch_size=5 = 20"),
        (3, False, "3 samples for elastic.logical_world_size=4 logical ranks"),
    ],
)
def test_loader_when_an_epoch_has_no_step_then_the_arithmetic_is_shown(
    length: int, drop_last: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parts(loader_of(length, drop_last=drop_last), 1)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 12])
@pytest.mark.parametrize(("limit", "batches"), [(None, 9), (4, 4), (0.5, 4)])
def test_evaluation_when_any_number_of_workers_evaluates_then_each_batch_comes_once_d07(
    world: int, limit: float | None, batches: int
) -> None:
    found: dict[int, list[int]] = {}
    lengths = set()
    for rank in range(world):
        loader = EvaluationLoader(loader_of(43, shuffle=False), "val_dataloader", 7, rank, world, 12, limit)
        lengths.add(len(loader))
        for batch in loader:
            found[loader.batch_index] = [sample[0] for sample in batch[:-1]]
            assert loader.samples() == len(found[loader.batch_index])
    assert lengths == {-(-batches // world)}
    assert found == {index: list(range(43))[index * 5 : index * 5 + 5] for index in range(batches)}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_evaluation_when_workers_differ_then_each_logical_ranks_batches_stay_with_one(world: int) -> None:
    loaders = [
        EvaluationLoader(loader_of(60, shuffle=False), "val_dataloader", 7, rank, world, 4, None)
        for rank in range(world)
    ]
    owners: dict[int, set[int]] = {}
    for rank, loader in enumerate(loaders):
        for _ in loader:
            owners.setdefault(loader.logical_rank, set()).add(rank)
    assert sorted(owners) == [0, 1, 2, 3]
    assert all(len(ranks) == 1 for ranks in owners.values())
    assert len({len(loader) for loader in loaders}) == 1
