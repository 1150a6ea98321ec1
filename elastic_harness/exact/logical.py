"""Logical ranks: who hosts which, which samples each trains on, and in which order their values are added.

A run is defined as data-parallel training on ``logical_world_size`` logical ranks. Everything here is a pure function
of that definition: nothing depends on how many workers there are, or on what happened before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from zlib import crc32

_T = TypeVar("_T")
_MASK = (1 << 64) - 1

Node = tuple[int, int]
"""Level and index of a node of the tree: the sum of logical ranks ``index << level`` up to the next index's first."""


def hosted(rank: int, world_size: int, logical_world_size: int) -> range:
    """The logical ranks that one of ``world_size`` workers hosts: contiguous, sizes differing by at most one."""
    quotient, remainder = divmod(logical_world_size, world_size)
    first = rank * quotient + min(rank, remainder)
    return range(first, first + quotient + (rank < remainder))


@dataclass(frozen=True)
class Deal:
    """How the samples of one epoch are dealt to steps and logical ranks.

    A full step gives each logical rank ``batch_size`` samples. Without ``drop_last`` the last step deals what is left
    evenly, lowest ranks first.

    Args:
        samples: samples in an epoch.
        batch_size: samples of one logical rank in a step.
        logical_world_size: number of logical ranks.
        drop_last: whether a last step with fewer samples is left out.
    """

    samples: int
    batch_size: int
    logical_world_size: int
    drop_last: bool

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        whole, rest = divmod(self.samples, self.batch_size * self.logical_world_size)
        return whole + (rest > 0 and not self.drop_last)

    def size(self, step: int) -> int:
        """Samples in a step, over all logical ranks."""
        size = self.batch_size * self.logical_world_size
        return min(size, self.samples - step * size)

    def active(self, step: int) -> int:
        """How many logical ranks have samples in a step: the lowest ones."""
        return min(self.logical_world_size, self.size(step))

    def share(self, step: int, logical_rank: int) -> slice:
        """Which places of the epoch's order a logical rank trains on in a step."""
        quotient, remainder = divmod(self.size(step), self.logical_world_size)
        first = step * self.batch_size * self.logical_world_size
        first += logical_rank * quotient + min(logical_rank, remainder)
        return slice(first, first + quotient + (logical_rank < remainder))


class TreeSum(Generic[_T]):
    """Adds one value for each logical rank along a balanced binary tree, so that the order is that of the tree alone.

    Neighbours are added in pairs, level by level; one without a neighbour moves up as it is. Values may come in any
    order, and a part of them may be added elsewhere and come as the value of a node.

    Args:
        leaves: number of logical ranks that have a value: the lowest ones.
        add: sum of two values; it must not matter which of the two comes first.
    """

    def __init__(self, leaves: int, add: Callable[[_T, _T], _T]) -> None:
        self._leaves = leaves
        self._add = add
        self.nodes: dict[Node, _T] = {}

    def put(self, node: Node, value: _T) -> None:
        """Take in the value of a node; ``(0, r)`` is logical rank r."""
        level, index = node
        while level < (self._leaves - 1).bit_length():
            neighbour = index ^ 1
            if (level, neighbour) in self.nodes:
                value = self._add(self.nodes.pop((level, neighbour)), value)
            elif neighbour << level < self._leaves:
                break
            level, index = level + 1, index >> 1
        self.nodes[level, index] = value

    @property
    def total(self) -> _T:
        """The sum, once all values are in."""
        (value,) = self.nodes.values()
        return value


def subtrees(ranks: range, leaves: int) -> list[Node]:
    """The nodes that a worker is left with once it has added what it hosts."""
    tree: TreeSum[None] = TreeSum(leaves, lambda left, right: None)
    for rank in ranks:
        if rank < leaves:
            tree.put((0, rank), None)
    return sorted(tree.nodes)


def seed_of(*parts: Any) -> int:
    """A 64-bit seed from numbers and texts; parts that differ give seeds that have nothing to do with each other.

    The mixing is that of SplitMix64 (Steele et al. 2014).
    """
    state = 0
    for part in parts:
        state ^= part & _MASK if isinstance(part, int) else crc32(repr(part).encode())
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
