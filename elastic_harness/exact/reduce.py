"""The reproducible all-reduce: gradients of logical ranks, added in the order of one tree, whoever computed them.

Each worker adds what it hosts into sums of whole subtrees, sends every other worker that one's slice of them, finishes
the tree for its own slice and sends the result around: as many bytes as a ring all-reduce when the workers host
aligned blocks. Gradients travel in flat buckets, with a mark for each parameter that had one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from elastic_harness.exact.logical import Node, TreeSum, hosted, subtrees

BUCKET_BYTES = 25 * 2**20
"""Size of a bucket, that of DistributedDataParallel."""


class Bucket:
    """Some parameters of one type whose gradients travel as one flat tensor.

    Behind the gradients comes a mark for each parameter, above zero if it was used, and padding to equal slices.

    Args:
        parameters: the parameters.
        world_size: number of slices.
    """

    def __init__(self, parameters: Sequence[Parameter], world_size: int) -> None:
        self.parameters = list(parameters)
        self.numel = sum(parameter.numel() for parameter in parameters)
        used = self.numel + len(self.parameters)
        self.length = -(-used // world_size) * world_size

    def new(self) -> Tensor:
        """An empty flat tensor."""
        return self.parameters[0].new_zeros(self.length)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The gradients in a flat tensor, each laid out in memory as its parameter is."""
        parts = torch.split(flat[: self.numel], [parameter.numel() for parameter in self.parameters])
        return [
            part.as_strided(p.size(), p.stride(), part.storage_offset()) if _is_dense(p) else part.view(p.size())
            for part, p in zip(parts, self.parameters, strict=True)
        ]

    def marks(self, flat: Tensor) -> Tensor:
        """The mark of each parameter in a flat tensor."""
        return flat[self.numel : self.numel + len(self.parameters)]

    def take(self, flat: Tensor) -> None:
        """Move the parameters' gradients into a flat tensor."""
        used = [parameter.grad is not None for parameter in self.parameters]
        views = self.views(flat)
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if grads:
            torch._foreach_copy_([view for view, is_used in zip(views, used, strict=True) if is_used], grads)
        for view, is_used in zip(views, used, strict=True):
            if not is_used:
                view.zero_()
        self.marks(flat).copy_(torch.tensor(used))
        for parameter in self.parameters:
            parameter.grad = None

    def give(self, flat: Tensor) -> None:
        """Let the parameters' gradients be the views of a flat tensor; a parameter without a mark has none."""
        for parameter, view, mark in zip(self.parameters, self.views(flat), self.marks(flat).tolist(), strict=True):
            parameter.grad = view if mark > 0 else None


class TreeReducer:
    """Sums the gradients of all logical ranks: ``add`` each hosted one, then ``finish``.

    Between ``start`` and ``finish`` a worker holds at most ``log2(logical_world_size) + 1`` copies of the gradients;
    what it receives of the others' sums, kept for the next step, is about one more.

    Args:
        parameters: what has gradients.
        rank: rank of this worker.
        world_size: number of workers.
        logical_world_size: number of logical ranks.
        bucket_bytes: size of a bucket.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        rank: int,
        world_size: int,
        logical_world_size: int,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.parameters = list(parameters)
        self._rank = rank
        self._world_size = world_size
        self._logical_world_size = logical_world_size
        self._buckets = _buckets(self.parameters, world_size, bucket_bytes)
        self._spare: list[list[Tensor]] = []
        self._buffers: dict[tuple[int, int, Node], Tensor] = {}
        self._given: list[Tensor] | None = None
        self.start(logical_world_size)

    def start(self, active: int) -> None:
        """Begin a step in which the first ``active`` logical ranks have samples."""
        self._active = active
        self._tree: TreeSum[list[Tensor]] = TreeSum(active, self._merge)

    def add(self, logical_rank: int) -> None:
        """Take the gradients that the parameters have now as those of a logical rank, and clear them."""
        if self._given is not None:
            self._spare.append(self._given)
            self._given = None
        flats = self._new()
        for bucket, flat in zip(self._buckets, flats, strict=True):
            bucket.take(flat)
        self._put(logical_rank, flats)

    def finish(self) -> None:
        """Add what all workers have, and give every parameter the sum as its gradient."""
        held = self._tree.nodes
        nodes = sorted(held)
        flats = held[nodes[0]] if nodes else self._new()
        if self._world_size > 1:
            works = [
                self._send_slices(number, [held[node][number] for node in nodes])
                for number in range(len(self._buckets))
            ]
            gathers = [self._finish_slice(number, flat, works[number]) for number, flat in enumerate(flats)]
            for gather in gathers:
                for work in gather:
                    work.wait()
        for bucket, flat in zip(self._buckets, flats, strict=True):
            bucket.give(flat)
        self._spare += [held[node] for node in nodes[1:]]
        self._given = flats

    def _put(self, logical_rank: int, flats: list[Tensor]) -> None:
        self._tree.put((0, logical_rank), flats)

    def _merge(self, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        torch._foreach_add_(left, right)
        self._spare.append(right)
        return left

    def _new(self) -> list[Tensor]:
        return self._spare.pop() if self._spare else [bucket.new() for bucket in self._buckets]

    def _send_slices(self, number: int, flats: list[Tensor]) -> tuple[list[dist.Work], list[tuple[Node, Tensor]]]:
        """Send every worker its slice of the sums held here, and have this worker's slice of theirs come."""
        length = self._buckets[number].length // self._world_size
        received: list[tuple[Node, Tensor]] = []
        transfers: list[dist.P2POp] = []
        for peer in range(self._world_size):
            nodes = subtrees(hosted(peer, self._world_size, self._logical_world_size), self._active)
            if peer == self._rank:
                own = [flat[peer * length : (peer + 1) * length] for flat in flats]
                received += zip(nodes, own, strict=True)
                continue
            for node in nodes:
                buffer = self._buffers.get((number, peer, node))
                if buffer is None:
                    buffer = self._buckets[number].parameters[0].new_empty(length)
                    self._buffers[number, peer, node] = buffer
                received.append((node, buffer))
                transfers.append(dist.P2POp(dist.irecv, buffer, peer, tag=2 * number))
            for flat in flats:
                part = flat[peer * length : (peer + 1) * length]
                transfers.append(dist.P2POp(dist.isend, part, peer, tag=2 * number))
        return dist.batch_isend_irecv(transfers) if transfers else [], received

    def _finish_slice(
        self,
        number: int,
        flat: Tensor,
        sent: tuple[list[dist.Work], list[tuple[Node, Tensor]]],
    ) -> list[dist.Work]:
        """Finish the tree for this worker's slice, put it into ``flat``, and have all slices of it come and go."""
        works, received = sent
        for work in works:
            work.wait()
        # In place: nobody else needs this slice of what was added up here.
        tree: TreeSum[Tensor] = TreeSum(self._active, Tensor.add_)
        for node, part in received:
            tree.put(node, part)
        length = len(flat) // self._world_size
        own = flat[self._rank * length : (self._rank + 1) * length]
        if own.data_ptr() != tree.total.data_ptr():
            own.copy_(tree.total)
        transfers: list[dist.P2POp] = []
        for peer in range(self._world_size):
            if peer != self._rank:
                part = flat[peer * length : (peer + 1) * length]
                transfers.append(dist.P2POp(dist.irecv, part, peer, tag=2 * number + 1))
                transfers.append(dist.P2POp(dist.isend, own, peer, tag=2 * number + 1))
        return dist.batch_isend_irecv(transfers)


class PlainReducer(TreeReducer):
    """The same sums by ``all_reduce``, in whatever order that adds: for ``consistency=batch``."""

    def _put(self, logical_rank: int, flats: list[Tensor]) -> None:
        before = self._tree.nodes.get((0, 0))
        self._tree.nodes[0, 0] = flats if before is None else self._merge(before, flats)

    def finish(self) -> None:
        flats = self._tree.nodes.get((0, 0))
        if flats is None:
            flats = self._new()
            torch._foreach_zero_(flats)
        if self._world_size > 1:
            works = [dist.all_reduce(flat, async_op=True) for flat in flats]
            for work in works:
                assert work is not None
                work.wait()
        for bucket, flat in zip(self._buckets, flats, strict=True):
            bucket.give(flat)
        self._given = flats


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


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in whatever order of its dimensions."""
    strides = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size > 1)
    expected = 1
    for stride, size in strides:
        if stride != expected:
            return False
        expected *= size
    return True
