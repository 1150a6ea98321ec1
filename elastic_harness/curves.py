"""TensorBoard's curves, whole whatever happens to the workers: no point is missing, and none is shown twice.

Steps that are trained again are taken off the curves when a generation starts. The other way round, rank 0, which alone
writes, may die in a step that another worker finishes, whose state the run then goes on from: that step is not trained
again. So every worker keeps the newest points in the state of the run, and the next rank 0 makes up for those that the
one before it may not have written.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

import pytorch_lightning as pl
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from elastic_harness.messages import Progress

ALL_WRITTEN = sys.maxsize
"""Stands for any number of a call, where rank 0 came to its end in peace."""

# As many as there can be in a row without a collective: after a validation, a batch, an epoch, and the training.
_KEPT_BOUNDARIES = 4
_CALLS_A_BOUNDARY = 2**20


class _Call(NamedTuple):
    """One call of ``log_metrics``: when, after how many steps, of which logger, and its arguments."""

    number: int
    steps: int
    logger: int
    metrics: dict[str, float]
    step: int


class Curves:
    """Keeps the newest points of all TensorBoard loggers in the state of a run; every worker has the same ones.

    Calls of the loggers are numbered by the boundaries before them, and counted between two of them.

    Args:
        trainer: of the worker.
        progress: where rank 0 tells its agent of the newest call that it wrote.
        written: the number of the newest call that rank 0 of the generation before is known to have written.
    """

    def __init__(self, trainer: pl.Trainer, progress: Progress, written: int) -> None:
        self._loggers = [each for each in trainer.loggers if isinstance(each, TensorBoardLogger)]
        self._loop = trainer.fit_loop.epoch_loop
        self._progress = progress
        self._written = written
        self._number = 0
        self._calls: deque[_Call] = deque()

    def drop_from(self, step: int) -> None:
        """Have TensorBoard drop the points of steps that will be trained again; before any logger is used."""
        for logger in self._loggers:
            logger._kwargs["purge_step"] = step

    def begin(self, state: Mapping[str, Any]) -> None:
        """Make up for what rank 0 may not have written, and take down what is logged from here on.

        Args:
            state: what ``state_dict`` gave; empty for a new run.
        """
        self._number = state.get("number", 0)
        self._calls.extend(_Call(*call) for call in state.get("calls", ()))
        for index, logger in enumerate(self._loggers):
            calls = [call for call in self._calls if call.logger == index]
            doubtful = [call.steps for call in calls if call.number > self._written]
            if doubtful:
                _drop_from(min(doubtful), logger)
            for call in calls:
                if doubtful and call.steps >= min(doubtful):
                    logger.log_metrics(call.metrics, call.step)
            self._record_calls_of(index, logger)
        self._progress.logged = self._number

    def reach_boundary(self) -> None:
        """What comes next is counted from 0, should a worker have called more often than the others."""
        boundary = self._number // _CALLS_A_BOUNDARY + 1
        self._number = boundary * _CALLS_A_BOUNDARY
        while self._calls and self._calls[0].number < (boundary - _KEPT_BOUNDARIES) * _CALLS_A_BOUNDARY:
            self._calls.popleft()

    def state_dict(self) -> dict[str, Any]:
        """For ``begin``."""
        return {"number": self._number, "calls": [tuple(call) for call in self._calls]}

    def _record_calls_of(self, index: int, logger: TensorBoardLogger) -> None:
        write = logger.log_metrics

        def log_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
            self._number += 1
            if step is not None:
                scalars = {name: float(value) for name, value in metrics.items() if _is_scalar(value)}
                self._calls.append(_Call(self._number, self._loop._batches_that_stepped, index, scalars, step))
            write(metrics=metrics, step=step)
            logger.save()  # it is written in a thread of its own
            self._progress.logged = self._number

        logger.log_metrics = log_metrics  # type: ignore[method-assign]


@rank_zero_only
def _drop_from(step: int, logger: TensorBoardLogger) -> None:
    """As a new ``SummaryWriter`` does that is given a ``purge_step``."""
    event = Event(step=step, session_log=SessionLog(status=SessionLog.START))
    logger.experiment._get_file_writer().add_event(event)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "numel", lambda: 0)() == 1
