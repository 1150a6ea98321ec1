"""Resuming inside an epoch under plain DDP, for ``consistency=none``."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from lightning_fabric.utilities.data import _set_sampler_epoch
from torch.utils.data import BatchSampler, Sampler


def start_at(loops: Mapping[str, Any], dataloader: object) -> object:
    """Start the first training loader after a resume at the batch that comes next, in the order of its epoch.

    Lightning starts over at the epoch's first batch. It may also ask for the loader, and draw from it, before it
    has restored its loops: a scheduler that wants to know the number of steps is enough. A loader without a torch
    ``BatchSampler`` (an iterable dataset, a batch sampler of its own) does start over.

    Args:
        loops: state of the fit loop in the checkpoint.
        dataloader: what the module returned, changed in place.
    """
    _set_sampler_epoch(dataloader, loops["epoch_progress"]["current"]["processed"])
    progress = loops["epoch_loop.batch_progress"]
    batches_done = 0 if progress["is_last_batch"] else progress["current"]["ready"]
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    if batches_done and isinstance(batch_sampler, BatchSampler):
        batch_sampler.sampler = _SkipOnce(batch_sampler.sampler, batches_done * batch_sampler.batch_size)
        # True of an ordinary loader, no longer of this one.
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
    return dataloader


class _SkipOnce(Sampler[Any]):
    """A sampler that leaves out the first samples of its first iteration: those trained on before the resume."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler = sampler
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        return itertools.islice(iter(self._sampler), skip, None)

    def __len__(self) -> int:
        assert isinstance(self._sampler, Sized)
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on, if the sampler takes one."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
