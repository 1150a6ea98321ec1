"""What the loggers were told lately, so that the points of a curve outlive the worker that should have written them.

Only rank 0 writes for a logger. It may die in a step that another worker finishes, whose state the run then goes on
from: that step is not trained again, and what it logged would be missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pytorch_lightning.loggers import Logger

from elastic_harness.messages import Progress

# As many as there can be in a row without a collective: after a validation, a batch, an epoch, and the training.
_KEPT_BOUNDARIES = 4
_CALLS_A_BOUNDARY = 2**20


class _Call(NamedTuple):
    """One call of ``log_metrics``: when, which of the loggers, and its arguments."""

    number: int
    logger: int
    metrics: dict[str, float]
    step: int | None


class LoggerCalls:
    """Keeps the newest calls of the loggers in the state of a run; every worker has the same ones.

    Calls are numbered by the boundaries before them, and counted between two of them.

    Args:
        loggers: of the Trainer.
        progress: where rank 0 tells its agent of the newest call that it wrote.
        written: the number of the newest call that rank 0 of the generation before wrote; None if it is not known.
    """

    def __init__(self, loggers: Sequence[Logger], progress: Progress, written: int | None) -> None:
        self._loggers = loggers
        self._progress = progress
        self._written = written
        self._number = 0
        self._calls: deque[_Call] = deque()

    def begin(self, state: Mapping[str, Any]) -> None:
        """Make up for what rank 0 did not write any more, and take down what is logged from here on.

        Args:
            state: what ``state_dict`` gave; empty for a new run.
        """
        self._number = state.get("number", 0)
        self._calls.extend(_Call(*call) for call in state.get("calls", ()))
        for call in self._calls:
            if self._written is not None and call.number > self._written and call.logger < len(self._loggers):
                self._loggers[call.logger].log_metrics(call.metrics, call.step)
        self._progress.logged = self._number
        for index, logger in enumerate(self._loggers):
            self._take_down(index, logger)

    def reach_boundary(self) -> None:
        """What comes next is counted from 0, should a worker have called more often than the others."""
        boundary = self._number // _CALLS_A_BOUNDARY + 1
        self._number = boundary * _CALLS_A_BOUNDARY
        while self._calls and self._calls[0].number < (boundary - _KEPT_BOUNDARIES) * _CALLS_A_BOUNDARY:
            self._calls.popleft()

    def state_dict(self) -> dict[str, Any]:
        """For ``begin``."""
        return {"number": self._number, "calls": [tuple(call) for call in self._calls]}

    def _take_down(self, index: int, logger: Logger) -> None:
        write = logger.log_metrics

        def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
            self._number += 1
            scalars = {name: float(value) for name, value in metrics.items() if _is_scalar(value)}
            self._calls.append(_Call(self._number, index, scalars, step))
            write(metrics=metrics, step=step)
            self._progress.logged = self._number

        logger.log_metrics = log_metrics  # type: ignore[method-assign]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "numel", lambda: 0)() == 1
