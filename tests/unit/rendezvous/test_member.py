"""What a node decides, one case at a time; the simulation tries everything at once."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_harness.rendezvous.member import Member
from elastic_harness.rendezvous.state import Node, Rules, State
from elastic_harness.rendezvous.view import Kind
from tests.unit.rendezvous.cluster import RULES, Cluster


@pytest.fixture
def two() -> Cluster:
    """Two nodes at work, with room for a third."""
    cluster = Cluster()
    cluster.start("a", "b")
    assert cluster.work(4) == {"a": 0, "b": 1}
    return cluster


def test_first_round_when_there_are_enough_nodes_then_the_last_call_waits_for_more_r08() -> None:
    cluster = Cluster()
    cluster.start("a")
    assert cluster.work(2.5) == {}
    cluster.start("b")
    assert cluster.work(1) == {"a": 0, "b": 1}


def test_first_round_when_it_is_full_then_nobody_waits() -> None:
    cluster = Cluster()
    cluster.start("a", "b", "c")
    assert cluster.work(0.2) == {"a": 0, "b": 1, "c": 2}


def test_first_round_when_there_are_too_few_nodes_then_it_stays_open() -> None:
    cluster = Cluster(Rules(2, 3, last_call=3.0, interval=0.5, attempts=4))
    cluster.start("a")
    assert cluster.work(30) == {}
    cluster.start("b")
    assert cluster.work(3.5) == {"a": 0, "b": 1}


def test_running_round_when_a_node_comes_later_then_all_are_told_and_no_last_call_waits_r01(two: Cluster) -> None:
    two.start("c")
    two.pass_time(0.2)
    assert two.changes() == {"a": Kind.JOIN, "b": Kind.JOIN}
    two.rejoin("a", "b")
    assert two.work(0.2) == {"a": 0, "b": 1, "c": 2}
    assert two.members["a"].round is not None
    assert two.members["a"].round.generation == 1


def test_running_round_when_it_is_full_then_one_more_is_a_spare_until_a_member_is_gone() -> None:
    cluster = Cluster()
    cluster.start("a", "b", "c")
    cluster.work(1)
    spare = cluster.start("d")
    cluster.pass_time(5)
    assert spare.is_spare
    assert not any(cluster.members[name].is_spare for name in "abc")
    assert cluster.changes() == {}
    cluster.members["b"].leave()
    cluster.rejoin("a", "c")
    assert cluster.work(1) == {"a": 0, "c": 1, "d": 2}
    assert not spare.is_spare


def test_running_round_when_one_member_starts_over_then_the_others_are_told_and_waited_for(two: Cluster) -> None:
    two.members["b"].join("a worker of b failed")
    two.pass_time(5)
    assert two.changes() == {"a": Kind.REOPENED}
    assert two.members["a"].change(two.now).text == "a worker of b failed"  # type: ignore[union-attr]
    two.rejoin("a")
    assert two.work(0.2) == {"a": 0, "b": 1}


def test_running_round_when_it_is_full_then_surplus_nodes_wait_and_nobody_is_disturbed(two: Cluster) -> None:
    two.start("c")
    two.pass_time(0.2)
    two.rejoin("a", "b")
    two.work(0.2)
    two.start("d")
    two.pass_time(5)
    assert two.changes() == {}
    assert two.members["a"].num_waiting == 0
    two.members["b"].leave()
    two.pass_time(0.2)
    assert two.changes() == {"a": Kind.LEAVE, "c": Kind.LEAVE}
    two.rejoin("a", "c")
    assert two.work(0.2) == {"a": 0, "c": 1, "d": 2}


def test_running_round_when_a_node_falls_silent_then_it_is_lost_and_left_out_r06(two: Cluster) -> None:
    two.silent.add("a")
    two.pass_time(1.5)
    assert two.changes()["a"] is Kind.FENCED
    assert "b" not in two.changes()
    two.pass_time(1)
    assert two.changes()["b"] is Kind.LOST
    two.rejoin("b")
    assert two.work(0.2)["b"] == 0
    two.silent.clear()
    two.pass_time(0.2)
    assert two.changes()["a"] is Kind.FENCED
    assert "expelled" in two.members["a"].change(two.now).text  # type: ignore[union-attr]
    two.rejoin("a")
    two.pass_time(0.2)
    two.rejoin("b")
    assert two.work(0.2) == {"a": 1, "b": 0}


def test_running_round_when_the_store_was_down_for_all_then_nobody_is_expelled(two: Cluster) -> None:
    two.silent.update("ab")
    two.pass_time(30)
    assert two.changes() == {"a": Kind.FENCED, "b": Kind.FENCED}
    two.silent.clear()
    two.rejoin("a", "b")
    assert two.work(1) == {"a": 0, "b": 1}
    assert two.state is not None
    assert two.state.launch == 1


def test_round_when_a_node_dies_before_the_store_is_published_then_there_is_simply_another_round() -> None:
    cluster = Cluster()
    cluster.start("a", "b")
    cluster.pass_time(3.2)
    assert cluster.members["b"].joined is not None
    cluster.silent.add("a")  # rank 0
    assert cluster.work(2.5)["b"] == 0


def test_failure_when_two_nodes_see_it_then_it_is_charged_once_p01(two: Cluster) -> None:
    two.members["a"].fail({"node": "a"})
    two.members["b"].fail({"node": "b"})
    two.pass_time(0.2)
    assert two.state is not None
    assert [dict(failure) for failure in two.state.failures] == [{"generation": 0, "node": "a"}]
    two.rejoin("a", "b")
    two.work()
    two.members["b"].fail({"node": "b"})
    two.pass_time(0.2)
    assert [failure["generation"] for failure in two.state.failures] == [0, 1]


def test_run_when_all_members_are_done_then_it_has_finished(two: Cluster) -> None:
    two.members["a"].finish()
    two.pass_time(5)
    assert two.changes() == {}
    two.members["b"].finish()
    two.pass_time(0.2)
    assert two.changes() == {"a": Kind.CLOSED, "b": Kind.CLOSED}
    assert two.members["a"].told == "finished"


def test_run_when_a_member_is_lost_while_others_are_done_then_they_go_on(two: Cluster) -> None:
    two.members["b"].finish()
    two.pass_time(0.2)
    two.silent.add("a")
    two.pass_time(2.5)
    assert two.changes()["b"] is Kind.LOST
    two.rejoin("b")
    assert two.work()["b"] == 0
    assert two.members["b"].told is None


def test_run_when_a_member_leaves_while_others_are_done_then_it_has_not_finished(two: Cluster) -> None:
    two.members["b"].finish()
    two.pass_time(0.2)
    two.members["a"].leave()
    two.pass_time(0.2)
    assert two.changes() == {"b": Kind.LEAVE}
    two.rejoin("b")
    assert two.work() == {"b": 0}


def test_launch_when_the_run_has_finished_then_its_machines_start_it_anew_and_others_are_told_r02(two: Cluster) -> None:
    spare = two.start("c")
    for name in "ab":
        two.members[name].finish()
    two.pass_time(0.2)
    assert spare.told == "finished"  # it was waiting
    late = two.start("d")
    two.pass_time(0.2)
    assert late.told == "finished"
    again = two.start("e", machine="a")
    assert two.work(4)["e"] == 0
    assert again.told is None
    assert two.state is not None
    assert (two.state.launch, two.state.generation, two.state.failures) == (2, 1, ())


def test_launch_when_something_else_is_to_be_done_then_any_machine_starts_it(two: Cluster) -> None:
    for name in "ab":
        two.members[name].finish()
    two.pass_time(0.2)
    two.start("d", logical_world_size=8)
    assert two.work(4)["d"] == 0
    assert two.state is not None
    assert two.state.settled == {"logical_world_size": 8}


def test_launch_when_every_node_has_died_then_the_same_command_starts_anew_r02(two: Cluster) -> None:
    two.members["a"].fail({})
    two.pass_time(0.2)
    two.silent.update("ab")
    two.start("c", "d")
    ranks = two.work(8)
    assert {name: ranks[name] for name in "cd"} == {"c": 0, "d": 1}
    assert two.state is not None
    assert (two.state.launch, two.state.generation, two.state.failures) == (2, 1, ())


def test_launch_when_a_node_knows_of_later_generations_then_counting_goes_on_there() -> None:
    cluster = Cluster()
    cluster.members["a"] = Member("a", Node("a", "a", newest=7), RULES, {})
    cluster.members["a"].join("")
    cluster.work(4)
    assert cluster.state is not None
    assert cluster.state.generation == 8


def settling(cluster: Cluster, name: str, **settled: Any) -> Member:
    cluster.members[name] = Member(name, Node(name, name), cluster.rules, settled)
    cluster.members[name].settle()
    return cluster.members[name]


def test_settling_when_a_job_is_under_way_then_takes_over_what_that_settled_and_disturbs_nobody() -> None:
    cluster = Cluster()
    cluster.start("a", size=4)
    assert cluster.work(4) == {"a": 0}
    newcomer = settling(cluster, "b", size=8)
    cluster.pass_time()
    assert newcomer.settled == {"size": 4}
    assert cluster.changes() == {}
    cluster.rejoin("b")
    cluster.pass_time()
    assert cluster.changes() == {"a": Kind.JOIN}


def test_settling_when_it_is_the_first_then_others_take_that_over_and_the_round_waits_for_it() -> None:
    cluster = Cluster(Rules(1, 2, last_call=0.0, interval=0.5, attempts=4))
    first = settling(cluster, "a", size=4)
    cluster.pass_time()
    assert first.settled == {"size": 4}
    second = settling(cluster, "b", size=8)
    cluster.pass_time()
    assert second.settled == {"size": 4}
    cluster.rejoin("b")
    assert cluster.work() == {}
    cluster.rejoin("a")
    assert cluster.work() == {"a": 0, "b": 1}


def test_writing_when_contact_is_lost_then_it_is_refused_before_the_others_go_on(two: Cluster) -> None:
    a = two.members["a"]
    assert a.may_write(two.now)
    two.silent.add("a")
    two.pass_time(RULES.fence + 0.1)
    assert not a.may_write(two.now)
    assert Kind.LOST not in two.changes().values()


def test_writing_when_a_node_has_left_then_only_the_last_one_may(two: Cluster) -> None:
    two.members["a"].leave()
    two.pass_time()
    assert not two.members["a"].may_write(two.now)
    assert two.members["a"].was_last is False
    two.members["b"].leave()
    two.pass_time()
    assert two.members["b"].may_write(two.now)


def test_closed_run_when_a_node_joins_then_it_is_told_why(two: Cluster) -> None:
    two.members["a"].close("rank 0 raised ValueError")
    two.pass_time(0.2)
    assert two.members["b"].told == "rank 0 raised ValueError"
    two.start("c")
    assert two.work(4)["c"] == 0  # a fresh process starts the run anew


def test_fixed_run_when_a_node_is_lost_then_it_ends_and_says_so() -> None:
    cluster = Cluster(Rules(2, 2, last_call=0.0, interval=0.5, attempts=4, fixed=True))
    cluster.start("a", "b")
    assert cluster.work() == {"a": 0, "b": 1}
    cluster.rejoin("a", "b")
    assert cluster.work() == {"a": 0, "b": 1}
    cluster.start("c")
    cluster.silent.add("b")
    cluster.pass_time(3)
    cluster.rejoin("a")
    cluster.pass_time(1)
    assert cluster.members["a"].told == "b is gone, and with rendezvous=static no other one can take its place"


def test_state_when_it_is_not_one_then_it_is_refused() -> None:
    for content in (b"{}", b"[1]", b'{"nodes": 3}', b"no json"):
        with pytest.raises(ValueError):  # noqa: PT011  (json's own or ours)
            State.from_bytes(content)


def test_may_write_when_a_frozen_leader_comes_back_as_a_spare_then_it_may_not() -> None:
    cluster = Cluster()
    cluster.start("a", "b", "c")
    assert cluster.work(1) == {"a": 0, "b": 1, "c": 2}
    assert [cluster.members[name].may_write(cluster.now) for name in "abc"] == [True, False, False]
    cluster.start("d")
    cluster.silent.add("a")
    cluster.pass_time(3)
    cluster.rejoin("b", "c")
    cluster.work(1)
    assert cluster.members["b"].may_write(cluster.now)
    cluster.silent.clear()
    cluster.rejoin("a")
    cluster.pass_time(3)
    assert cluster.members["a"].is_spare
    assert not cluster.members["a"].may_write(cluster.now)


def test_others_work_when_only_a_spare_is_left_then_nobody_has_what_this_node_has() -> None:
    cluster = Cluster(Rules(1, 2, last_call=0.0, interval=0.5, attempts=4))
    cluster.start("a", "b")
    assert cluster.work(1) == {"a": 0, "b": 1}
    cluster.start("c")
    cluster.pass_time(1)
    assert cluster.members["a"].others_work
    cluster.members["b"].leave()
    cluster.pass_time(0.2)
    assert not cluster.members["a"].others_work
    assert cluster.members["b"].was_last is False
    cluster.members["a"].leave()
    cluster.pass_time(0.2)
    assert cluster.members["a"].was_last is True


def test_came_later_when_the_launch_had_begun_without_it_then_it_is_true(two: Cluster) -> None:
    late = two.start("c")
    two.pass_time(1)
    assert late.came_later
    assert not two.members["a"].came_later
