"""The reproducible all-reduce: gradients of logical ranks, added in the order of one tree, whoever computed them.

Each worker adds what it hosts into sums of whole subtrees, sends every other worker that one's slice of them, finishes
the tree for its own slice and sends the result around: as many bytes as a ring all-reduce when the workers host
aligned blocks. Gradients travel in flat buckets, with a mark for each parameter that had one; a bucket leaves as soon
as the last backward has made its gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from elastic_harness.exact.bucket import Bucket, BucketSum, Place, PlainBucketSum

BUCKET_BYTES = 25 * 2**20
"""Size of a bucket, that of DistributedDataParallel."""


class TreeReducer:
    """Sums the gradients of all logical ranks: ``start``, ``add`` each one hosted here, then ``finish``.

    Instead of the last ``add`` there may be ``expect``, before the backward that makes the gradients; buckets then
    leave while it runs, in the order of their numbers. Between ``start`` and ``finish`` a worker holds at most
    ``log2(logical_world_size) + 1`` copies of the gradients; what it receives of the others' sums, kept for the next
    step, is about one more.

    Args:
        parameters: what has gradients.
        place: this worker's.
        bucket_bytes: size of a bucket.
    """

    _sum: type[BucketSum] = BucketSum

    def __init__(self, parameters: Iterable[Parameter], place: Place, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.parameters = list(parameters)
        buckets = _buckets(self.parameters, place.world_size, bucket_bytes)
        self._sums = [self._sum(bucket, number, place) for number, bucket in enumerate(buckets)]
        self._members = [{id(parameter) for parameter in bucket.parameters} for bucket in buckets]
        self._launched = 0
        self._expected: int | None = None
        self._missing: list[set[int]] = []
        # A parameter may get its gradient in several parts, as with reentrant checkpointing. The first step tells.
        self._parts: Counter[int] = Counter()
        self._overlaps: bool | None = None
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for each in self.parameters
        ]

    def close(self) -> None:
        """Let go of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def start(self, active: int) -> None:
        """Begin a step in which the first ``active`` logical ranks have samples."""
        self._launched, self._expected = 0, None
        for each in self._sums:
            each.start(active)

    def add(self, logical_rank: int) -> None:
        """Take the gradients that the parameters have now as those of a logical rank, and clear them."""
        for each in self._sums:
            each.take(logical_rank)

    def expect(self, logical_rank: int) -> None:
        """The backward that comes next makes the gradients of the last logical rank hosted here."""
        self._expected = logical_rank
        self._missing = [set(members) for members in self._members]
        self._parts.clear()

    def finish(self) -> None:
        """Add what all workers have, and give every parameter the sum as its gradient."""
        if self._expected is not None and self._overlaps is None:
            self._overlaps = max(self._parts.values(), default=1) == 1
        while self._launched < len(self._sums):
            self._launch()
        self._expected = None
        for each in self._sums:
            each.advance()
        for each in self._sums:
            each.finish()

    def _arrived(self, parameter: Tensor) -> None:
        """Called by autograd when a parameter has got a gradient, or a part of it."""
        if self._expected is None:
            return
        self._parts[id(parameter)] += 1
        if self._overlaps and self._parts[id(parameter)] > 1:
            raise RuntimeError(
                "A parameter got its gradient in several parts, which it did not in the first step: use "
                "torch.utils.checkpoint with use_reentrant=False."
            )
        for missing in self._missing:
            missing.discard(id(parameter))
        while self._overlaps and self._launched < len(self._sums) and not self._missing[self._launched]:
            self._launch()

    def _launch(self) -> None:
        each = self._sums[self._launched]
        if self._expected is not None:
            each.take(self._expected)
        each.launch()
        self._launched += 1


class PlainReducer(TreeReducer):
    """The same sums by ``all_reduce``, in whatever order that adds: for ``consistency=batch``."""

    _sum = PlainBucketSum


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every worker rank 0's values, in one message a type."""
    for _, group in groupby(sorted(tensors, key=_kind), key=_kind):
        members = list(group)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in members])
        dist.broadcast(flat, 0)
        parts = torch.split(flat, [tensor.numel() for tensor in members])
        for tensor, part in zip(members, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.size()))


def _buckets(parameters: list[Parameter], world_size: int, bucket_bytes: int) -> list[Bucket]:
    """Buckets in the order in which gradients become ready: from the last parameter to the first."""
    buckets: list[Bucket] = []
    backwards = parameters[::-1]
    for _, group in groupby(sorted(backwards, key=_kind), key=_kind):
        members: list[Parameter] = []
        size = 0
        for parameter in group:
            members.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= bucket_bytes:
                buckets.append(Bucket(members, world_size))
                members, size = [], 0
        if members:
            buckets.append(Bucket(members, world_size))
    return buckets


_kind: Callable[[Tensor], str] = lambda tensor: f"{tensor.dtype} {tensor.device}"  # noqa: E731
