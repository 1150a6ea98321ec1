"""Who is alive, judged by each observer on its own monotonic clock: has the other's counter moved?"""

from __future__ import annotations

from collections.abc import Mapping


class Liveness:
    """Watches the counters of other nodes.

    The observer's own silence is not held against the others: when it could not look for a while, that time counts for
    at most one interval; when that was as long as the patience (it was stopped, or the store was down), patience begins
    anew. So after an outage that stopped everybody's counter, everybody gets the time to move it again.

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
        silence = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        moved = {}
        for name, beat in beats.items():
            known, since = self._moved.get(name, (None, now))
            stood_still = known == beat and silence < self._patience
            moved[name] = (beat, since + max(0.0, silence - self._interval) if stood_still else now)
        self._moved = moved
        self.dead = frozenset(name for name, (_, since) in moved.items() if now - since >= self._patience)
