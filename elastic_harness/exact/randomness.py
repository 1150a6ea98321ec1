"""Randomness that is keyed, not stored: every generator starts from what is about to be computed.

Nothing has to be saved for a resume, and nothing depends on which process computes what.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from elastic_harness.exact.logical import seed_of


def seed_generators(*parts: Any) -> None:
    """Seed torch, numpy and ``random`` by these parts; CUDA too, where it is in use."""
    seed = seed_of(*parts)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
