"""A module that keeps a configuration, and more, among its hyperparameters, as copied ones often do."""

from __future__ import annotations

from functools import partial
from typing import Any

from omegaconf import OmegaConf

from recipes.digits_mlp.module import DigitsMLP


class ConfiguredMLP(DigitsMLP):
    """Its hyperparameters hold a part of a configuration, or something that no checkpoint should hold.

    Args:
        factory: keep the function that makes the optimizer.
    """

    def __init__(self, factory: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters({"net": OmegaConf.create({"widths": [64, "${..depth}"], "depth": 10})})
        if factory:
            self.save_hyperparameters({"optimizer": partial(dict)})
