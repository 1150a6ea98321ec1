"""Values logged by several logical ranks become one, in an order of their own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultCollection
from torchmetrics import SumMetric

from elastic_harness.exact.step_log import Record, Recorder, Told, combined, replay, start_gather, taken_in


def record(place: int, value: float, weight: int = 1, name: str = "loss", **options: Any) -> Record:
    return Record(place, "training_step", name, value, weight, {"reduce_fx": "mean", "sync_dist": True, **options})


def test_gather_when_one_worker_hosts_all_then_records_are_in_the_order_of_ranks() -> None:
    told = start_gather(Told([record(1, 0.0), record(2, 0.0), record(0, 0.0)], {}))()
    assert [each.place for each in taken_in(told, {})] == [0, 1, 2]


def gathered_by(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    few = [record(rank, 0.25 + rank)]
    many = [record(rank, float(number), name=f"value {number}") for number in range(1000 * rank)]
    arrived = [start_gather(Told(records, {})) for records in (few, many, [])]  # all on their way at once
    found = [taken_in(each(), {}) for each in arrived]
    assert found[0] == [record(0, 0.25), record(1, 1.25)]
    assert found[1] == [record(1, float(number), name=f"value {number}") for number in range(1000)]
    assert found[2] == []
    dist.destroy_process_group()


def test_gather_when_two_workers_have_few_or_many_records_then_both_have_all(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=gathered_by, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0]


@pytest.mark.parametrize(
    ("kind", "expected"), [("mean", (1.0 * 3 + 5.0) / 4), ("sum", 6.0), ("min", 1.0), ("max", 5.0), (torch.sum, 6.0)]
)
def test_combined_when_synchronised_then_reduced_over_ranks(kind: Any, expected: float) -> None:
    (found,) = combined([record(0, 1.0, 3, reduce_fx=kind), record(1, 5.0, 1, reduce_fx=kind)])
    assert found.value == expected
    assert found.weight == 4


def test_combined_when_not_synchronised_then_logical_rank_0_counts() -> None:
    found = combined([record(0, 1.0, sync_dist=False), record(1, 5.0, sync_dist=False)])
    assert [each.value for each in found] == [1.0]
    assert combined([record(1, 5.0, sync_dist=False)]) == []
    found = combined([record(0, 1.0, rank_zero_only=True), record(1, 5.0, rank_zero_only=True)])
    assert [each.value for each in found] == [1.0]


def test_combined_when_only_some_ranks_log_a_name_then_the_mean_is_theirs() -> None:
    found = combined([record(0, 1.0), record(1, 2.0, name="rare"), record(3, 4.0, name="rare")])
    assert {each.name: each.value for each in found} == {"loss": 1.0, "rare": 3.0}


def test_combined_when_a_rank_logs_a_name_twice_then_both_count_as_in_lightning() -> None:
    twice = [record(0, 1.0), record(0, 2.0), record(1, 3.0), record(1, 6.0), record(1, 9.0)]
    assert [each.value for each in combined(twice)] == [2.0, 4.0, 9.0]
    unsynchronised = [record(0, 1.0, sync_dist=False), record(0, 2.0, sync_dist=False)]
    assert [each.value for each in combined(unsynchronised)] == [1.0, 2.0]


def test_replay_when_a_torchmetrics_object_was_logged_then_the_step_has_the_value_of_the_first_rank() -> None:
    module, results = pl.LightningModule(), _ResultCollection(training=True)
    module.metric = SumMetric()
    records = []
    for place in (1, 0):
        recorder = Recorder(results, place, samples=1)
        module.metric(10.0 + place)
        recorder.log("training_step", "m", module.metric, on_step=True, on_epoch=True, metric_attribute="metric")
        records += recorder.records
    replay(combined(taken_in([Told(records, {})], {})), results, module)
    assert results.metrics(on_step=True)["callback"]["m"] == 10.0


def test_replay_when_recorded_then_the_results_are_those_of_lightning() -> None:
    recorded, direct = (_ResultCollection(training=True) for _ in range(2))
    for value in (0.1, 0.7):
        recorder = Recorder(recorded, 0, samples=3)
        for name, results in (("loss", recorder), ("loss", direct)):
            results.log("training_step", name, torch.tensor(value), on_step=True, reduce_fx="mean", batch_size=3)  # type: ignore[arg-type]
        replay(combined(recorder.records), recorded, pl.LightningModule())
    assert not recorder
    for on_step in (True, False):
        assert recorded.metrics(on_step)["callback"] == direct.metrics(on_step)["callback"]
