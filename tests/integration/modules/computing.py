"""A module that computes when it is imported, with all the threads there are."""

from __future__ import annotations

import torch

from recipes.digits_mlp.module import DigitsMLP

PRODUCT = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
IMAGES = torch.nn.functional.conv2d(torch.ones(8, 16, 64, 64), torch.ones(32, 16, 3, 3))


class ComputingMLP(DigitsMLP):
    """The usual one."""
