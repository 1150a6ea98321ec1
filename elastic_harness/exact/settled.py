"""What defines a run and is settled once, at its first start: how many logical ranks, with how many threads each.

It is recorded in the run folder's ``config.yaml``. A later start takes it over, whatever the machine it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import yaml

from elastic_harness.config import ElasticConfig
from elastic_harness.config.rules import world_problems
from elastic_harness.errors import ConfigError


def settle(elastic: ElasticConfig, recorded: Mapping[str, Any], workers: int, cores: int) -> ElasticConfig:
    """The configuration with ``logical_world_size`` and ``num_threads`` settled.

    Args:
        elastic: as it was given.
        recorded: the ``elastic`` group of an earlier start of the run; empty at the first.
        workers: workers on this node.
        cores: CPU cores of this node.

    Raises:
        ConfigError: more workers than logical ranks, or another number of logical ranks than the run has.
    """
    before = recorded.get("logical_world_size")
    asked = elastic.logical_world_size
    if before is not None and asked not in (None, before):
        raise ConfigError(
            f"elastic.logical_world_size={asked} must be the {before} that this run was started with, since it "
            "defines the batch: leave it out, or start another run with another run_id."
        )
    size = asked or before or workers * elastic.max_nodes
    if elastic.consistency != "none" and (problems := list(world_problems(size, workers, elastic.max_nodes))):
        if asked is None:
            problems = [f"{each} The run has settled that number at its first start." for each in problems]
        raise ConfigError(problems)
    threads = elastic.num_threads or recorded.get("num_threads") or max(1, cores * elastic.max_nodes // size)
    return replace(elastic, logical_world_size=size, num_threads=threads)


def recorded_as(config: str | None, elastic: ElasticConfig) -> str:
    """The content of ``config.yaml`` that records what was settled.

    Args:
        config: the configuration as it was given; None if there is none, as in a script.
        elastic: its ``elastic`` group, settled.
    """
    content = yaml.safe_load(config or "{}")
    content["elastic"] = asdict(elastic)
    return yaml.safe_dump(content, sort_keys=False)
