"""What ``self.log`` is given in a step: written down for each logical rank, combined into one value for all workers.

Every worker ends up with the same numbers, bit for bit: without ``sync_dist`` logical rank 0's, as in DDP; with it,
those of all logical ranks, reduced in the order of the tree. So a callback or a scheduler decides alike everywhere.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.trainer.connectors.logger_connector.result import _Metadata, _ResultCollection
from torchmetrics import Metric

from elastic_harness.exact.logical import TreeSum
from elastic_harness.exact.metrics import Changes, LogicalMetric, put_changes

_NOT_KEPT = ("sync_dist_fn", "sync_dist_group", "batch_size")

_LENGTH_BYTES = 8
_ROOM = 4096
"""Bytes of a worker's records that travel in one message; more take a second one. A call of log is about 200."""


@dataclass(frozen=True)
class Record:
    """One call of ``self.log``.

    Args:
        place: orders the records of all workers: the logical rank, or in evaluation the batch.
        fx: the hook it was called in.
        name: the name.
        value: the number. For a torchmetrics object, found again by its ``metric_attribute``, what its newest
            ``forward`` returned; None if that is no number, or is not logged by step.
        weight: number of samples it stands for.
        options: the other arguments.
        dataloader_idx: in evaluation, the loader the batch came from.
    """

    place: int
    fx: str
    name: str
    value: float | None
    weight: int
    options: dict[str, Any]
    dataloader_idx: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.fx, self.name

    @property
    def is_metric(self) -> bool:
        """Whether a torchmetrics object was logged."""
        return self.options.get("metric_attribute") is not None

    @property
    def reduction(self) -> str:
        """``mean``, ``sum``, ``min`` or ``max``."""
        reduce_fx = _Metadata(self.fx, self.name, reduce_fx=self.options["reduce_fx"]).reduce_fx
        return str(reduce_fx.__name__)


class Recorder(_ResultCollection):
    """Stands in for a loop's results during a step, and writes down what is logged instead of adding it up.

    Args:
        results: the results it stands in for.
        place: see ``Record``.
        samples: number of samples in the batch.
    """

    def __init__(self, results: _ResultCollection, place: int, samples: int) -> None:
        super().__init__(training=results.training)
        self.records: list[Record] = []
        self._results = results
        self._place = place
        self._samples = samples
        self.dataloader_idx = results.dataloader_idx

    def log(self, fx: str, name: str, value: Any, **options: Any) -> None:
        weight = options.get("batch_size")
        kept = {key: option for key, option in options.items() if key not in _NOT_KEPT}
        if isinstance(value, Metric):
            value = value._forward_cache if options.get("on_step") else None
        number = None if value is None or torch.as_tensor(value).numel() != 1 else float(value)
        weight = self._samples if weight is None else int(weight)
        self.records.append(Record(self._place, fx, name, number, weight, kept, self.dataloader_idx or 0))

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        self._results.reset(metrics, fx)


class Told(NamedTuple):
    """What a worker tells the others.

    Args:
        records: what was logged.
        changes: what torchmetrics objects were updated with.
        seconds: that it took for a step of one logical rank, lately.
    """

    records: list[Record]
    changes: Changes
    seconds: float = 0.0


def start_gather(told: Told) -> Callable[[], list[Told]]:
    """Begin to send what a worker tells to all, so that they need not wait for each other at this point.

    Returns:
        Waits for what all workers tell, and returns it in the order of their ranks.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return lambda: [told]
    data = pickle.dumps(told)
    arrived = _exchange(data, _ROOM)

    def finish() -> list[Told]:
        everyones, longest = arrived()
        if longest > _ROOM:
            everyones, _ = _exchange(data, longest)()
        return [pickle.loads(each) for each in everyones]

    return finish


def taken_in(everyones: list[Told], metrics: Mapping[str, LogicalMetric]) -> list[Record]:
    """The records of all workers, in the order of their places; the torchmetrics objects take in the other changes."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    for other, told in enumerate(everyones):
        if other != rank:
            put_changes(metrics, told.changes)
    return sorted((record for told in everyones for record in told.records), key=attrgetter("place"))


def _exchange(data: bytes, room: int) -> Callable[[], tuple[list[bytes], int]]:
    """Begin to send every worker's bytes to all, as many as there is room for; it returns them and the longest length.

    One message, as its size is known beforehand: ``all_gather_object`` takes two, and two waits.
    """
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    own = (len(data).to_bytes(_LENGTH_BYTES) + data[:room]).ljust(_LENGTH_BYTES + room)
    sent = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    received = sent.new_empty(dist.get_world_size() * len(sent))
    work = dist.all_gather_single(received, sent, async_op=True)
    assert work is not None

    def finish() -> tuple[list[bytes], int]:
        work.wait()
        rows = [row.tobytes() for row in received.view(-1, len(sent)).cpu().numpy()]
        lengths = [int.from_bytes(row[:_LENGTH_BYTES]) for row in rows]
        parts = [row[_LENGTH_BYTES:][:length] for row, length in zip(rows, lengths, strict=True)]
        return parts, max(lengths)

    return finish


def combined(records: Iterable[Record]) -> list[Record]:
    """One record for each name: what a step of all logical ranks logged; several, where each rank did so repeatedly."""
    by_call: dict[tuple[str, str, int], list[Record]] = {}
    calls: Counter[tuple[int, str, str]] = Counter()
    for record in records:
        call = (record.place, *record.key)
        by_call.setdefault((*record.key, calls[call]), []).append(record)
        calls[call] += 1
    found: list[Record] = []
    for same in by_call.values():
        first = same[0]
        if first.options.get("sync_dist") and not first.is_metric and not first.options.get("rank_zero_only"):
            found.append(_reduced(same))
        elif first.is_metric or first.place == 0:
            found.append(first)
    return found


def replay(records: Iterable[Record], results: _ResultCollection, module: pl.LightningModule) -> None:
    """Log combined records into a loop's results."""
    for record in records:
        value: Any
        if record.is_metric:
            value = attrgetter(record.options["metric_attribute"])(module)
            if record.value is not None:
                value._forward_cache = torch.tensor(record.value, device=module.device)
        else:
            value = torch.tensor(record.value, device=module.device)
        # They are synchronised already: `sync_dist` stays, for Lightning would warn without it, and does nothing.
        options = {**record.options, "sync_dist": True, "batch_size": record.weight}
        results.log(record.fx, record.name, value, **options)


def _reduced(records: list[Record]) -> Record:
    """The reduction of a value over all logical ranks that logged it."""
    kind = records[0].reduction
    add = {"min": min, "max": max}.get(kind, float.__add__)
    values: TreeSum[float] = TreeSum(len(records), add)
    weight = sum(record.weight for record in records)
    for leaf, record in enumerate(records):
        assert record.value is not None
        values.put((0, leaf), record.value * record.weight if kind == "mean" else record.value)
    total = values.total / weight if kind == "mean" and weight else values.total
    return replace(records[0], value=total, weight=weight)
