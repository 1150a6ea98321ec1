"""Lightning's training loops, with their boundaries: the moments between steps at which the state of a run is whole.

A checkpoint that is taken inside of a hook leaves Lightning to guess from its counters what had happened by then, and
it skips a pending validation, repeats the rest of a step, or forgets the end of an epoch. A boundary lies after the
last hook, and what comes next is part of the state.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loops import fetchers
from pytorch_lightning.loops.fetchers import _DataFetcher
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop

_NEXT = "next"


class Next(StrEnum):
    """What a run does after a boundary."""

    VALIDATION = "validation"
    """The validation that is due at this step, and the rest of the step."""
    BATCH = "batch"
    """The next batch; after the last one of an epoch, what an epoch ends with."""
    EPOCH = "epoch"
    """The next epoch, if there is one."""
    END = "end"
    """Nothing: the training is over, unless it is resumed with a later end."""


class ElasticEpochLoop(_TrainingEpochLoop):
    """Lightning's loop over the batches of an epoch, with boundaries. A loop becomes one by ``install``.

    Attributes:
        resumed: what comes first, in a resume, as long as that is not done.
    """

    resumed: Next | None
    _next: Next | None
    _on_boundary: Callable[[Next], None]

    def reach(self, following: Next) -> None:
        """Be at a boundary, unless a step is still collecting gradients."""
        if following is Next.BATCH and self._should_accumulate():
            return
        self._next = following
        self._on_boundary(following)
        self._next = None

    @property
    def done(self) -> bool:
        return self.resumed is not Next.VALIDATION and super().done

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        if self.resumed is None:
            return
        # From here on it is as if the process had not changed.
        self._restarting = self.val_loop.restarting = self.trainer.fit_loop._restarting = False
        if self.resumed is not Next.VALIDATION:
            self.resumed = None

    def advance(self, data_fetcher: _DataFetcher) -> None:
        if self.resumed is Next.VALIDATION:
            return
        try:
            super().advance(data_fetcher)
        except StopIteration as error:
            _refuse_if_the_users(error)
            raise
        if self._should_check_val_fx(data_fetcher):
            self.reach(Next.VALIDATION)

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        try:
            super().on_advance_end(data_fetcher)
        except StopIteration as error:
            _refuse_if_the_users(error)
            raise
        self.resumed = None
        self.reach(Next.BATCH)

    def on_save_checkpoint(self) -> dict[str, Any]:
        return {**super().on_save_checkpoint(), _NEXT: self._next and self._next.value}

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        super().on_load_checkpoint(state_dict)
        following = state_dict.get(_NEXT)  # none in a checkpoint that a hook has taken
        self.resumed = Next(following) if following else None


def _refuse_if_the_users(error: StopIteration) -> None:
    """Lightning takes it for the end of the data; one of the user's code would end the epoch on this worker alone."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename != fetchers.__file__:
        raise RuntimeError(f"StopIteration was raised in {frame.f_code.co_name}") from error


class ElasticFitLoop(_FitLoop):
    """Lightning's loop over the epochs, with boundaries. A loop becomes one by ``install``."""

    epoch_loop: ElasticEpochLoop

    @property
    def done(self) -> bool:
        # Also when the last step is done, its validation or the end of its epoch may not be.
        return self.epoch_loop.resumed not in (Next.VALIDATION, Next.BATCH) and super().done

    @property
    def skip(self) -> bool:
        # What a training ends with may be all that is left.
        return self.epoch_loop.resumed is None and super().skip

    def advance(self) -> None:
        if self.epoch_loop.resumed in (Next.EPOCH, Next.END):
            self.epoch_loop._restarting = False  # or it would take the counters of the epoch before for its own
        super().advance()

    def on_advance_end(self) -> None:
        super().on_advance_end()
        self.epoch_loop.reach(Next.EPOCH)

    def on_run_end(self) -> None:
        self.epoch_loop.reach(Next.END)
        super().on_run_end()


def install(trainer: pl.Trainer, on_boundary: Callable[[Next], None]) -> None:
    """Give a Trainer's loops boundaries.

    Args:
        trainer: before it trains.
        on_boundary: called at each.
    """
    # The loops were made with the Trainer; all they hold stays.
    trainer.fit_loop.__class__ = ElasticFitLoop
    loop: Any = trainer.fit_loop.epoch_loop
    loop.__class__ = ElasticEpochLoop
    loop.resumed, loop._next, loop._on_boundary = None, None, on_boundary


def is_last_of_step(trainer: pl.Trainer, following: Next) -> bool:
    """Whether the boundary is the last one of its step: after a validation, and after the end of an epoch."""
    return following in (Next.EPOCH, Next.END) or (following is Next.BATCH and not trainer.fit_loop.epoch_loop.done)
