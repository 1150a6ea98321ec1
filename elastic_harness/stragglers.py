"""Names workers that are slower than the others, each once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Straggler(NamedTuple):
    """A worker that all others wait for.

    Args:
        rank: its global rank.
        seconds: that it takes for a step of one logical rank.
        median: of all workers.
    """

    rank: int
    seconds: float
    median: float


class Stragglers:
    """Looks at the workers of one generation.

    Args:
        factor: how many times the median is too slow.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._named: set[int] = set()

    def look(self, seconds: Sequence[float]) -> list[Straggler]:
        """Those that are too slow and have not been named.

        Args:
            seconds: mean time of a step by rank.
        """
        # The lower one of two, since of two workers one may be slow.
        median = statistics.median_low(seconds)
        slow = {rank: each for rank, each in enumerate(seconds) if each > self._factor * median}
        found = [Straggler(rank, each, median) for rank, each in slow.items() if rank not in self._named]
        self._named |= slow.keys()
        return found
