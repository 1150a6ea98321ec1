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
            cluster.work_is_done = True
            assert cluster.run(20, until=cluster.finished), "not every node is told of the end"
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error} in {cluster.state}") from error


@pytest.mark.parametrize("faults", [Faults(loss=0, delay=0.3, events=0), Faults(loss=0.05, delay=0.1, events=0)])
def test_rendezvous_when_the_network_is_slow_or_loses_much_then_no_live_node_is_expelled(faults: Faults) -> None:
    for seed in range(60):
        cluster = Cluster(seed, rules(), faults)
        for _ in range(4):
            cluster.start()
        cluster.run(40)
        assert cluster.expelled == [], f"seed {seed}"


def test_rendezvous_when_the_store_is_down_for_all_then_no_node_is_expelled() -> None:
    for seed in range(200):
        cluster = Cluster(seed, rules(), Faults(events=0))
        nodes = [cluster.start() for _ in range(3)]
        assert cluster.run(60, until=cluster.settled)
        longest = cluster.now + cluster.random.choice([1, 3, 5, 20]) + cluster.random.random()
        for node in nodes:
            node.cut_until = longest
        cluster.run(longest - cluster.now)
        cluster.calm_down()
        assert cluster.run(30, until=cluster.settled), f"seed {seed}"
        assert cluster.expelled == [], f"seed {seed}"
