"""The reproducible all-reduce: gradients of logical ranks, added in the order of one tree, whoever computed them.

Each worker adds what it hosts into sums of whole subtrees, sends every other worker that one's slice of them, finishes
the tree for its own slice and sends the result around: as many bytes as a ring all-reduce when the workers host
aligned blocks. Gradients travel in flat buckets, with a mark for each parameter that had one; a bucket leaves as soon
as the last backward has made its gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from elastic_harness.exact.bucket import Bucket, BucketSum, Place, PlainBucketSum

BUCKET_BYTES = 25 * 2**20
LAST_BUCKET_BYTES = 2**20
"""Sizes of a bucket, and of the last one to leave, those of DistributedDataParallel."""


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

    def launch(self) -> None:
        """Send what has not left yet; the messages of every worker are in the same order."""
        if self._expected is not None and self._overlaps is None:
            self._overlaps = max(self._parts.values(), default=1) == 1
        while self._launched < len(self._sums):
            self._launch()
        self._expected = None

    def finish(self) -> None:
        """Add what all workers have, and give every parameter the sum as its gradient."""
        self.launch()
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


def start_broadcast(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Begin to give every worker rank 0's values, in one message a type.

    Returns:
        Waits for the values and puts them into the tensors.
    """
    sent = []
    for _, group in groupby(sorted(tensors, key=_kind), key=_kind):
        members = [tensor.detach() for tensor in group]
        flat = torch.cat([tensor.reshape(-1) for tensor in members])
        work = dist.broadcast(flat, 0, async_op=True)
        assert work is not None
        sent.append((members, flat, work))

    def finish() -> None:
        for members, flat, work in sent:
            work.wait()
            parts = torch.split(flat, [tensor.numel() for tensor in members])
            torch._foreach_copy_(members, [part.view_as(tensor) for tensor, part in zip(members, parts, strict=True)])

    return finish


def _buckets(parameters: list[Parameter], world_size: int, bucket_bytes: int) -> list[Bucket]:
    """Buckets in the order in which gradients become ready: from the last parameter to the first.

    The last one is small: nothing is left to compute while it is on its way.
    """
    buckets: list[Bucket] = []
    for _, group in groupby(sorted(parameters, key=_kind), key=_kind):
        members: list[Parameter] = []
        size, limit = 0, min(LAST_BUCKET_BYTES, bucket_bytes)
        for parameter in group:
            members.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= limit:
                buckets.append(Bucket(members[::-1], world_size))
                members, size, limit = [], 0, bucket_bytes
        if members:
            buckets.append(Bucket(members[::-1], world_size))
    return buckets[::-1]


_kind: Callable[[Tensor], str] = lambda tensor: f"{tensor.dtype} {tensor.device}"  # noqa: E731
