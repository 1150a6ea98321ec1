"""A module that changes process-wide settings where it is built, as a user's might."""

from __future__ import annotations

from typing import Any

import torch

from recipes.digits_mlp.module import DigitsMLP


class SettingMLP(DigitsMLP):
    """Sets what workers have to take over."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.deterministic = True
        torch.set_default_dtype(torch.float64)
        self.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.double())
