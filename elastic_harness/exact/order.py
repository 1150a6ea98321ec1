"""The order of the samples in an epoch: the user's sampler, drawn with generators that are keyed by seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from elastic_harness.errors import ConfigError
from elastic_harness.exact.randomness import seed_generators
from elastic_harness.exact.refused import inexact

_DRAWN_BY_KEY = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers that are known to draw from their ``generator`` alone."""


class EpochOrder:
    """The order of the samples in each epoch, drawn from the user's sampler with keyed generators.

    Raises:
        ConfigError: the number of samples is unknown, or changes from one epoch to the next; or the order depends on
            what was drawn before.
    """

    def __init__(self, sampler: Any, seed: int, kind: str) -> None:
        self._is_known = type(sampler) in _DRAWN_BY_KEY
        self._sampler = sampler
        self._seed = seed
        self._kind = kind
        try:
            self.length = len(sampler)
        except TypeError:
            raise ConfigError(inexact(kind, "its length is unknown", "give the dataset a __len__")) from None

    def draw(self, epoch: int) -> Sequence[Any]:
        """The sample ids of an epoch, in order."""
        if type(self._sampler) is SequentialSampler:
            return range(self.length)
        order = self._drawn(epoch)
        if not self._is_known and self._drawn(epoch) != order:
            raise ConfigError(
                inexact(
                    self._kind,
                    f"its {type(self._sampler).__name__} gives another order each time it is asked for epoch {epoch}",
                    "let it draw from the global generator of torch, numpy or random, or from one that it makes anew "
                    "in __iter__ out of the epoch that set_epoch gives it",
                )
            )
        self._is_known = True
        if len(order) != self.length:
            raise ConfigError(
                inexact(
                    self._kind,
                    f"its sampler gave {len(order)} samples in epoch {epoch} and {self.length} before",
                    "let it give the same number in every epoch",
                )
            )
        return order

    def _drawn(self, epoch: int) -> list[Any]:
        seed_generators(self._seed, "order", self._kind, epoch)
        if isinstance(getattr(self._sampler, "generator", 0), torch.Generator | None):
            self._sampler.generator = torch.default_generator
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        return list(self._sampler)
