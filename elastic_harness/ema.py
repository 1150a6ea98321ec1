"""Lightning's moving average of weights, as a callback that can be sent to workers."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytorch_lightning.callbacks import EMAWeightAveraging
from torch.optim.swa_utils import get_ema_avg_fn


class EMA(EMAWeightAveraging):
    """Lightning's ``EMAWeightAveraging``, which holds a function that cannot be pickled.

    Args:
        decay: share of the average that stays at each update.
        options: the other arguments, such as ``update_every_n_steps``.
    """

    def __init__(self, decay: float = 0.999, **options: Any) -> None:
        super().__init__(decay=decay, **options)
        self._kwargs["avg_fn"] = partial(_averaged, decay)


def _averaged(decay: float, *arguments: Any) -> Any:
    return get_ema_avg_fn(decay)(*arguments)  # type: ignore[no-untyped-call]
