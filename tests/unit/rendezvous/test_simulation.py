"""Thousands of schedules of joins, leaves, deaths, delays, skewed clocks, lost and repeated writes."""

from __future__ import annotations

import pytest

from tests.unit.rendezvous.simulation import Cluster, Faults, rules

SCHEDULES = 300


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize(("min_nodes", "max_nodes"), [(1, 4), (2, 3), (1, 1)])
def test_rendezvous_when_everything_goes_wrong_then_its_promises_hold(
    block: int, min_nodes: int, max_nodes: int
) -> None:
    for seed in range(block * SCHEDULES, (block + 1) * SCHEDULES):
        cluster = Cluster(seed, rules(min_nodes=min_nodes, max_nodes=max_nodes), Faults())
        for _ in range(cluster.random.randint(1, 4)):
            cluster.start()
        cluster.something_happens()
        try:
            cluster.run(15)
            cluster.calm_down()
            assert cluster.run(40, until=cluster.settled), "no round closes on a quiet network"
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error} in {cluster.state}") from error
