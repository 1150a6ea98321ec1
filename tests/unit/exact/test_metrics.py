"""torchmetrics objects compute the same bits at any number of workers, and go on after a restart with another one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import (
    CatMetric,
    MaxMetric,
    MeanMetric,
    MeanSquaredError,
    Metric,
    MetricCollection,
    PearsonCorrCoef,
    SumMetric,
)

from elastic_harness.errors import ConfigError
from elastic_harness.exact import metrics
from elastic_harness.exact.logical import hosted
from elastic_harness.exact.metrics import Place, State, logical_metrics, put_changes, take_changes, updated_at

RANKS = 5


class MeanState(Metric):
    """A state that is averaged over workers."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, predicted: torch.Tensor, target: torch.Tensor) -> None:
        self.mean = self.mean + (predicted - target).mean()

    def compute(self) -> torch.Tensor:
        return self.mean


class Workers:
    """The modules of all workers of a generation, with torchmetrics objects named ``metric``."""

    def __init__(self, make: Callable[[], nn.Module], world: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modules = [nn.ModuleDict({"metric": make()}) for _ in range(world)]
        self.logical = [logical_metrics(module) for module in self.modules]
        self.rank = 0
        monkeypatch.setattr(metrics, "_outside", lambda: ("outside", self.rank))
        monkeypatch.setattr(metrics, "_gathered", lambda states: states)  # they have told each other

    def each(self) -> Iterator[tuple[int, nn.ModuleDict]]:
        for rank, module in enumerate(self.modules):
            self.rank = rank
            yield rank, module

    def tell(self) -> None:
        changes = [take_changes(self.logical[rank]) for rank, _ in self.each()]
        for rank, _ in self.each():
            for other in range(len(changes)):
                if other != rank:
                    put_changes(self.logical[rank], pickle.loads(pickle.dumps(changes[other])))

    def states(self, rank: int = 0) -> dict[str, dict[Place, State]]:
        self.rank = rank
        return {name: each.states() for name, each in self.logical[rank].items()}

    def step(self, number: int, update: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        for rank, module in self.each():
            for logical_rank in reversed(hosted(rank, len(self.modules), RANKS)):
                torch.manual_seed(100 * number + logical_rank)
                predicted, target = torch.randn(2, 3) * 10**logical_rank
                with updated_at(self.logical[rank].values(), ("train", logical_rank)):
                    update(module["metric"], predicted, target)
        self.tell()

    def restarted(self, make: Callable[[], nn.Module], world: int, monkeypatch: pytest.MonkeyPatch) -> Workers:
        states, new = self.states(len(self.modules) - 1), Workers(make, world, monkeypatch)
        for rank, _ in new.each():
            for name, each in new.logical[rank].items():
                each.restore(states[name])
        return new

    def computed(self) -> list[Any]:
        return [[each.tolist() for each in _values(module["metric"].compute())] for _, module in self.each()]


def _values(computed: Any) -> list[torch.Tensor]:
    return list(computed.values()) if isinstance(computed, dict) else [computed]


def both(metric: Any, predicted: torch.Tensor, target: torch.Tensor) -> None:
    metric.update(predicted, target)


def forward(metric: Any, predicted: torch.Tensor, target: torch.Tensor) -> None:
    metric(predicted, target)


def first(metric: Any, predicted: torch.Tensor, target: torch.Tensor) -> None:
    metric(predicted)


def pair() -> MetricCollection:
    return MetricCollection({"mse": MeanSquaredError(), "rmse": MeanSquaredError(squared=False)})


@pytest.mark.parametrize(
    ("make", "update"),
    [
        (MeanMetric, first),
        (SumMetric, first),
        (MaxMetric, first),
        (CatMetric, first),
        (PearsonCorrCoef, forward),
        (MeanState, both),
        (MeanSquaredError, forward),
        (pair, both),  # one compute group
        (pair, forward),
    ],
)
def test_metric_when_workers_differ_or_restart_then_it_computes_the_same_bits(
    make: Callable[[], nn.Module], update: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Workers(make, 1, monkeypatch)
    for number in range(4):
        one.step(number, update)
    (expected,) = one.computed()

    workers = Workers(make, 3, monkeypatch)
    for number in range(4):
        if number == 2:
            workers = workers.restarted(make, 2, monkeypatch)
        workers.step(number, update)
    assert workers.computed() == [expected, expected]


def test_metric_when_computed_then_it_is_the_one_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, plain = Workers(MeanSquaredError, 2, monkeypatch), MeanSquaredError()

    def update(metric: Any, predicted: torch.Tensor, target: torch.Tensor) -> None:
        for each in (metric, plain):
            each(predicted, target)

    for number in range(2):
        workers.step(number, update)
    assert workers.computed()[0][0] == pytest.approx(float(plain.compute()))


def test_metric_when_reset_between_steps_then_all_begin_anew_and_within_one_only_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(SumMetric, 2, monkeypatch)
    with updated_at(workers.logical[0].values(), ("train", 0)):
        workers.modules[0]["metric"](1.0)
    with updated_at(workers.logical[0].values(), ("train", 1)):
        workers.modules[0]["metric"](2.0)
        workers.modules[0]["metric"].reset()
        workers.modules[0]["metric"](4.0)
    workers.tell()
    assert workers.computed() == [[5.0], [5.0]]
    for _, module in workers.each():
        module["metric"].reset()
    with updated_at(workers.logical[1].values(), ("train", 4)):
        workers.modules[1]["metric"](8.0)
    workers.tell()
    assert workers.computed() == [[8.0], [8.0]]


def test_metric_when_a_list_is_reset_within_a_step_then_the_others_have_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(CatMetric, 2, monkeypatch)
    for values in ((1.0, 2.0), (3.0,), (4.0, 5.0)):
        with updated_at(workers.logical[0].values(), ("train", 0)):
            if values == (4.0, 5.0):
                workers.modules[0]["metric"].reset()
            for value in values:
                workers.modules[0]["metric"].update(value)
        workers.tell()
        if values == (3.0,):
            assert workers.computed() == [[[1.0, 2.0, 3.0]]] * 2
    assert workers.computed() == [[[4.0, 5.0]]] * 2


def test_metric_when_updated_outside_of_steps_then_it_is_one_update_a_worker_as_under_ddp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(SumMetric, 3, monkeypatch)
    for rank, module in workers.each():
        module["metric"](10.0**rank)
    workers.rank = 1
    with updated_at(workers.logical[1].values(), ("train", 2)):
        workers.modules[1]["metric"](4.0)
    workers.tell()
    assert workers.computed() == [[115.0]] * 3
    workers = workers.restarted(SumMetric, 2, monkeypatch)
    assert workers.computed() == [[115.0]] * 2


def test_metric_when_a_step_has_no_weight_then_it_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(SumMetric, 1, monkeypatch)
    with updated_at(workers.logical[0].values(), ("train", 0), keep=False):
        workers.modules[0]["metric"](3.0)
    assert workers.states() == {"metric": {}}


def test_metric_when_computed_over_workers_inside_a_step_then_it_is_refused() -> None:
    metric = SumMetric()
    with updated_at(logical_metrics(nn.ModuleDict({"metric": metric})).values(), ("train", 0)):
        metric(1.0)
        with pytest.raises(ConfigError, match="SumMetric is computed over all workers inside a step"):
            metric.compute()
