"""Failures of a run are counted once, and a node that only lost its peers hears why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from elastic_harness import rendezvous
from elastic_harness.config import RendezvousConfig
from elastic_harness.rendezvous import ElasticRendezvous, Kind
from elastic_harness.restart import Failure
from elastic_harness.run_failures import RunFailures
from elastic_harness.stop_signals import StopSignals

KILLED = Failure(1, "signal", "SIGKILL", step=3, traceback="long")


@pytest.fixture
def nodes() -> Iterator[ElasticRendezvous]:
    handler = rendezvous.create(RendezvousConfig(), "run")
    handler.next_rendezvous()
    yield handler
    handler.shutdown()


def test_charge_when_a_failure_is_new_then_it_counts_once_and_keeps_its_traceback_here(
    nodes: ElasticRendezvous,
) -> None:
    failures = RunFailures(nodes, StopSignals())
    assert nodes.round is not None
    generation = nodes.round.generation
    assert failures.charge(KILLED, generation) == [KILLED]
    assert failures.charge(replace(KILLED, rank=0), generation) == [replace(KILLED, traceback="")]
    assert nodes.next_rendezvous() is not None
    assert nodes.round.after_failure
    nodes.next_rendezvous()
    assert not nodes.round.after_failure
    assert nodes.failures[0]["cause"] == "rank 1 was killed by SIGKILL, perhaps out of memory"
    assert "long" not in str(nodes.failures)


def test_cause_elsewhere_when_there_is_no_other_node_then_there_is_none(nodes: ElasticRendezvous) -> None:
    assert RunFailures(nodes, StopSignals()).cause_elsewhere(0, lambda: None) is None


def test_cause_elsewhere_when_another_node_has_told_then_that_is_it(
    nodes: ElasticRendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.round is not None
    nodes.charge_restart({**asdict(KILLED), "cause": "rank 1 on b was killed"})
    joined = replace(nodes.round, members={"a": nodes._node, "b": nodes._node})
    monkeypatch.setattr(type(nodes), "round", property(lambda _: joined))
    change = RunFailures(nodes, StopSignals()).cause_elsewhere(joined.generation, lambda: None)
    assert change is not None
    assert (change.kind, change.text) == (Kind.REOPENED, "rank 1 on b was killed")
