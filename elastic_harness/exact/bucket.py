"""Gradients of some parameters as one flat tensor, and its sum over all logical ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from elastic_harness.exact.logical import Node, TreeSum, hosted, subtrees


class Place(NamedTuple):
    """Where a worker stands: its rank, the number of workers, the number of logical ranks."""

    rank: int
    world_size: int
    logical_world_size: int

    @property
    def peers(self) -> list[int]:
        """The other workers."""
        return [peer for peer in range(self.world_size) if peer != self.rank]


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


class BucketSum:
    """The sum of one bucket over all logical ranks, in the order of the tree.

    For each step: ``start``, ``take`` for each logical rank hosted here, ``launch``, ``advance``, ``finish``. Between
    the last three other buckets have their turn, while data is on its way.

    Args:
        bucket: what is added up.
        number: its number, in which all workers agree.
        place: this worker's.
    """

    def __init__(self, bucket: Bucket, number: int, place: Place) -> None:
        self._bucket = bucket
        self._number = number
        self._place = place
        self._spare: list[Tensor] = []
        self._buffers: dict[tuple[int, Node], Tensor] = {}
        self._given: Tensor | None = None
        self._received: list[tuple[Node, Tensor]] = []
        self._works: list[dist.Work] = []
        self.start(place.logical_world_size)

    def start(self, active: int) -> None:
        """Begin a step in which the first ``active`` logical ranks have samples."""
        self._active = active
        self._tree: TreeSum[Tensor] = TreeSum(active, self._merge)

    def take(self, logical_rank: int) -> None:
        """Take the gradients that the parameters have now as those of a logical rank, and clear them."""
        if self._given is not None:
            self._spare.append(self._given)
            self._given = None
        flat = self._new()
        self._bucket.take(flat)
        self._put(logical_rank, flat)

    def launch(self) -> None:
        """Send every worker its slice of the sums held here, and have this worker's slice of theirs come."""
        self._received = []
        transfers: list[dist.P2POp] = []
        sums = sorted(self._tree.nodes.items())
        for node, flat in sums:
            self._received.append((node, self._slice(flat, self._place.rank)))
        for peer in self._place.peers:
            for node in subtrees(hosted(peer, *self._place[1:]), self._active):
                buffer = self._buffer(peer, node)
                self._received.append((node, buffer))
                transfers.append(dist.P2POp(dist.irecv, buffer, peer, tag=2 * self._number))
            for _, flat in sums:
                transfers.append(dist.P2POp(dist.isend, self._slice(flat, peer), peer, tag=2 * self._number))
        self._works = dist.batch_isend_irecv(transfers) if transfers else []

    def advance(self) -> None:
        """Finish the tree for this worker's slice, and have all slices of the result come and go."""
        self._wait()
        nodes = sorted(self._tree.nodes)
        self._given = self._tree.nodes[nodes[0]] if nodes else self._new()
        self._spare += [self._tree.nodes[node] for node in nodes[1:]]
        if self._place.world_size == 1:
            return
        # In place: nobody else needs this slice of what was added up here.
        tree: TreeSum[Tensor] = TreeSum(self._active, Tensor.add_)
        for node, part in self._received:
            tree.put(node, part)
        own = self._slice(self._given, self._place.rank)
        if own.data_ptr() != tree.total.data_ptr():
            own.copy_(tree.total)
        transfers: list[dist.P2POp] = []
        for peer in self._place.peers:
            part = self._slice(self._given, peer)
            transfers.append(dist.P2POp(dist.irecv, part, peer, tag=2 * self._number + 1))
            transfers.append(dist.P2POp(dist.isend, own, peer, tag=2 * self._number + 1))
        self._works = dist.batch_isend_irecv(transfers)

    def finish(self) -> None:
        """Give every parameter the sum as its gradient."""
        self._wait()
        assert self._given is not None
        self._bucket.give(self._given)

    def _put(self, logical_rank: int, flat: Tensor) -> None:
        self._tree.put((0, logical_rank), flat)

    def _merge(self, left: Tensor, right: Tensor) -> Tensor:
        self._spare.append(right)
        return left.add_(right)

    def _new(self) -> Tensor:
        return self._spare.pop() if self._spare else self._bucket.new()

    def _slice(self, flat: Tensor, rank: int) -> Tensor:
        length = self._bucket.length // self._place.world_size
        return flat[rank * length : (rank + 1) * length]

    def _buffer(self, peer: int, node: Node) -> Tensor:
        """Where a worker's slice of a sum arrives: kept, for fresh pages cost as much as the sum."""
        if (peer, node) not in self._buffers:
            self._buffers[peer, node] = torch.empty_like(self._slice(self._bucket.new(), 0))
        return self._buffers[peer, node]

    def _wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []


class PlainBucketSum(BucketSum):
    """The same sum by ``all_reduce``, in whatever order that adds: for ``consistency=batch``."""

    def launch(self) -> None:
        self._given = self._tree.nodes[0, 0] if self._tree.nodes else self._new().zero_()
        if self._place.world_size > 1:
            work = dist.all_reduce(self._given, async_op=True)
            assert work is not None
            self._works = [work]

    def advance(self) -> None:
        """Nothing: ``all_reduce`` does it all."""

    def _put(self, logical_rank: int, flat: Tensor) -> None:
        before = self._tree.nodes.get((0, 0))
        self._tree.nodes[0, 0] = flat if before is None else self._merge(before, flat)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in whatever order of its dimensions."""
    strides = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size > 1)
    expected = 1
    for stride, size in strides:
        if stride != expected:
            return False
        expected *= size
    return True
