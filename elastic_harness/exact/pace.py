"""How long each worker takes for its own part of a step: loading, forward and backward, without the wait for others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch


class Pace:
    """Measures this worker, and adds up what all of them have measured.

    On a GPU the time is the device's, and that of a step is known when its work is done there.

    Args:
        device: that computes.

    Attributes:
        seconds: of this worker, a logical rank, in the newest step that is known; 0 before the first.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._begun: Any = None
        self._measured: list[tuple[Any, Any, int]] = []
        self.seconds = 0.0
        self._sums: list[float] = []
        self._steps = 0

    def begin(self) -> None:
        """The loading of a step's batches begins."""
        self._begun = self._now()

    def end(self, parts: int) -> None:
        """The backward of a step is done, for so many logical ranks."""
        self._measured.append((self._begun, self._now(), parts))
        while self._measured and (not self._on_gpu or self._measured[0][1].query()):
            begun, ended, parts = self._measured.pop(0)
            self.seconds = (begun.elapsed_time(ended) / 1e3 if self._on_gpu else ended - begun) / parts

    def hear(self, seconds: Sequence[float]) -> None:
        """Every worker has told its seconds, by rank; 0 as long as it does not know any."""
        if not all(seconds):
            return
        self._sums = [total + each for total, each in zip(self._sums or [0.0] * len(seconds), seconds, strict=True)]
        self._steps += 1

    def take(self) -> list[float]:
        """Mean seconds a step since this was asked last, by rank; empty if there was none."""
        means = [total / self._steps for total in self._sums]
        self._sums, self._steps = [], 0
        return means

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
