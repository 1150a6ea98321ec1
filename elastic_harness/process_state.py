"""The state of a process that a worker takes over from the process that launches it.

A worker is forked from the zygote, and would inherit that one's environment and settings.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states


@dataclass(frozen=True)
class ProcessState:
    """The parts of the launching process that a worker needs and does not inherit, being a child of the zygote."""

    environment: Mapping[str, str]
    start_method: str
    num_threads: int
    deterministic: bool
    deterministic_warn_only: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    matmul_precision: str
    default_dtype: torch.dtype
    random_states: dict[str, Any]

    @classmethod
    def capture(cls, num_threads: int, interface: str | None) -> ProcessState:
        """Read the state of this process, without touching CUDA.

        Args:
            num_threads: of a worker.
            interface: the network interface at which the other nodes reach this one; None if it is not known.
        """
        # Otherwise gloo would look up this machine's own name, which may not resolve.
        gloo = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        return cls(
            environment={**gloo, **os.environ},
            start_method=multiprocessing.get_start_method(),
            num_threads=num_threads,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            matmul_precision=torch.get_float32_matmul_precision(),
            default_dtype=torch.get_default_dtype(),
            random_states=_collect_rng_states(include_cuda=False),
        )

    def restore(self) -> None:
        """Put the state into this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        # The loader processes' too: a child of a forkserver would start a second, empty one for them.
        multiprocessing.set_start_method(self.start_method, force=True)
        torch.set_num_threads(self.num_threads)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warn_only)
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.set_default_dtype(self.default_dtype)
        _set_rng_states(self.random_states)
