"""What the first start settles, later ones take over or are refused for."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_harness.config import ElasticConfig
from elastic_harness.errors import ConfigError
from elastic_harness.exact.settled import settle


@pytest.mark.parametrize(
    ("given", "recorded", "workers", "settled"),
    [
        ({}, {}, 3, (3, 2)),
        ({"max_nodes": 2}, {}, 3, (6, 2)),
        ({"logical_world_size": 8}, {}, 3, (8, 1)),
        ({"logical_world_size": 8, "num_threads": 4}, {}, 3, (8, 4)),
        ({}, {"logical_world_size": 8, "num_threads": 5}, 3, (8, 5)),
        ({"logical_world_size": 8}, {"logical_world_size": 8, "num_threads": 5}, 1, (8, 5)),
        ({"num_threads": 1}, {"logical_world_size": 8, "num_threads": 5}, 1, (8, 1)),
    ],
)
def test_settle_when_asked_then_ranks_and_threads_do_not_depend_on_later_workers(
    given: dict[str, Any], recorded: dict[str, Any], workers: int, settled: tuple[int, int]
) -> None:
    elastic = settle(ElasticConfig(**given), recorded, workers, cores=6)
    assert (elastic.logical_world_size, elastic.num_threads) == settled


def test_settle_when_another_number_is_asked_for_than_recorded_then_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"elastic\.logical_world_size=4 must be the 8 that this run was started"):
        settle(ElasticConfig(logical_world_size=4), {"logical_world_size": 8}, 1, 1)


def test_settle_when_there_are_more_workers_than_recorded_ranks_then_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"elastic\.logical_world_size=2 must be at least the 3 workers"):
        settle(ElasticConfig(), {"logical_world_size": 2}, 3, 1)


def test_settle_when_consistency_is_none_then_any_number_of_workers_goes() -> None:
    assert settle(ElasticConfig(consistency="none"), {"logical_world_size": 2}, 3, 1).logical_world_size == 2
