"""Who is alive, judged by each observer on its own monotonic clock: has the other's counter moved?"""

from __future__ import annotations

from collections.abc import Mapping


class Liveness:
    """Watches the counters of other nodes.

    The observer's own silence is not held against the others: when it could not look for a while (it was stopped, or
    the store did not answer), that time counts for at most one interval. So after an outage that stopped everybody's
    counter, everybody gets the time to move it again.

    Args:
        patience: seconds a counter may stand still.
        interval: seconds between two looks that count in full.
    """

    def __init__(self, patience: float, interval: float) -> None:
        self._patience = patience
        self._interval = interval
        self._looked: float | None = None
        self._moved: dict[str, tuple[int, float]] = {}
        self.dead: frozenset[str] = frozenset()

    def observe(self, beats: Mapping[str, int], now: float) -> None:
        """Take in the counters as they were just read.

        Args:
            beats: the counter of each node.
            now: this node's monotonic clock, in seconds.
        """
        missed = max(0.0, now - self._looked - self._interval) if self._looked is not None else 0.0
        self._looked = now
        moved = {}
        for name, beat in beats.items():
            known = self._moved.get(name)
            moved[name] = (beat, known[1] + missed) if known is not None and known[0] == beat else (beat, now)
        self._moved = moved
        self.dead = frozenset(name for name, (_, since) in moved.items() if now - since >= self._patience)
