"""Elastic training harness for Hydra and Lightning: runs that survive their machines.

Importing this package imports neither torch nor Lightning; ``ElasticStrategy`` does, when it is asked for.
``import elastic_harness.strategy`` makes ``Trainer(strategy="elastic")`` work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_harness.config import (
    BackoffConfig,
    CheckpointConfig,
    ElasticConfig,
    ObjectiveConfig,
    PreemptionConfig,
    RendezvousConfig,
    RestartConfig,
    WatchdogConfig,
)
from elastic_harness.errors import ClusterError, ConfigError, HarnessError, Stopped, TrainingFailed

if TYPE_CHECKING:
    from elastic_harness.strategy import ElasticStrategy

__all__ = [
    "BackoffConfig",
    "CheckpointConfig",
    "ClusterError",
    "ConfigError",
    "ElasticConfig",
    "ElasticStrategy",
    "HarnessError",
    "ObjectiveConfig",
    "PreemptionConfig",
    "RendezvousConfig",
    "RestartConfig",
    "Stopped",
    "TrainingFailed",
    "WatchdogConfig",
]


def __getattr__(name: str) -> Any:
    if name == "ElasticStrategy":
        from elastic_harness.strategy import ElasticStrategy

        return ElasticStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
