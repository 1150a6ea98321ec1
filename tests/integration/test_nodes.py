"""Several nodes train one run: agents in processes of their own, each with its own machine name and shared memory."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd import Etcd
from tests.integration.nodes import Gated, Nodes, StartNode, c10d, kill, undisturbed, wait_for_world

pytestmark = pytest.mark.long


def test_nodes_when_they_start_together_then_train_one_run_and_only_rank_0_writes_it(start_node: StartNode) -> None:
    group = c10d(2, 2)
    one, two = start_node("one", "own_1", *group), start_node("two", "own_2", *group)
    one.finish()
    two.finish()
    (leader,) = (node for node in (one, two) if (node.folder / "result.json").exists())
    (other,) = {one, two} - {leader}
    expected = undisturbed(start_node)
    assert leader.result["world_sizes"] == [2]
    assert (leader.result["restarts"], leader.result["steps_lost"]) == (0, 0)
    assert leader.result["weights_sha256"] == expected["weights_sha256"]
    assert leader.result["metrics"] == expected["metrics"]
    assert not list((other.folder / "checkpoints").glob("*.ckpt"))
    assert not list(other.folder.glob("tensorboard/events*"))
    assert [event["status"] for event in other.events("node_left")] == ["finished"]


def test_nodes_when_one_has_a_checkpoint_and_one_has_none_then_both_resume_from_it_c09(
    start_node: StartNode, tmp_path: Path
) -> None:
    before = start_node("one", "own_1", "elastic.nproc_per_node=2", "trainer.max_epochs=2")
    before.finish()
    trace = tmp_path / "trace"
    group = (*c10d(2, 2), f"+callbacks.trace={{_target_: probes.StepTrace, path: {trace}}}")
    one, two = start_node("one", "own_1", *group), start_node("two", "own_2", *group)
    one.finish()
    two.finish()
    first = {}
    for line in map(json.loads, trace.read_text().splitlines()):
        first.setdefault(line["rank"], line["step"])
    assert first == {0: 25, 1: 25}
    resumed = [event for node in (one, two) for event in node.events("resumed")]
    assert [(event["step"], event["steps_lost"]) for event in resumed] == [(24, 0)]
    (leader,) = (node for node in (one, two) if [event["step"] for event in node.events("run_finished")][-1:] == [60])
    assert leader.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


def test_nodes_when_they_share_a_run_folder_then_one_agent_a_node_may_use_it(start_node: StartNode) -> None:
    group = c10d(2, 2)
    one = start_node("one", "shared", *group)
    one.wait_until(lambda: one.events("run_started"))
    again = start_node("one", "shared", *group)
    again.finish(code=2)
    assert f"is in use by process {one.process.pid} or a worker" in again.stderr
    two = start_node("two", "shared", *group)
    one.finish()
    two.finish()
    assert {event["node"] for event in one.events("generation_started")} == {"one", "two"}
    assert (one.result["generations"], one.result["world_sizes"], one.result["step"]) == (1, [2], 60)
    assert len(one.events("run_finished")) == 1


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    nodes = Nodes(tmp_path)
    yield nodes.start
    nodes.clean_up()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(tmp_path)
    server.wait()
    yield server
    server.stop()


def test_nodes_when_they_join_freeze_die_and_leave_then_no_step_is_lost_and_the_weights_are_the_same(
    start_node: StartNode, tmp_path: Path, etcd: Etcd
) -> None:
    course = Gated(tmp_path, 5, 17, 24, 32, 45)
    group = ("rendezvous=etcd", f"rendezvous.endpoint={etcd.endpoint}", "elastic.max_nodes=2", *course.overrides)
    group = (*group, "restart.max_restarts=0", "rendezvous.last_call_timeout=0")
    one = start_node("one", "run", *group)
    course.wait_at(5, one)

    two = start_node("two", "run", *group)
    joined = wait_for_world(one, 2, after=0)
    course.open(5)
    course.wait_at(17, one)

    two.process.send_signal(signal.SIGSTOP)  # only its agent; it is expelled
    alone = wait_for_world(one, 1, after=joined)
    two.process.send_signal(signal.SIGCONT)
    joined = wait_for_world(one, 2, after=alone)
    course.open(17)
    course.wait_at(24, one)

    kill(two)
    alone = wait_for_world(one, 1, after=joined)
    course.open(24)
    course.wait_at(32, one)

    three = start_node("three", "run", *group)
    joined = wait_for_world(one, 2, after=alone)
    course.open(32)
    course.wait_at(45, one)

    one.process.send_signal(signal.SIGTERM)  # rank 0
    one.finish(code=143)
    wait_for_world(three, 1, after=joined)
    course.open(45)
    three.finish()

    assert course.trained() == list(range(1, 61))
    assert (three.result["restarts"], three.result["steps_lost"]) == (0, 0)
    assert "fenced" in {event["kind"] for event in three.events("round_over") if event["node"] == "two"}
    assert three.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


def test_nodes_when_there_is_one_more_than_may_train_then_it_is_a_spare_and_takes_over(
    start_node: StartNode, tmp_path: Path, etcd: Etcd
) -> None:
    course = Gated(tmp_path, 5, 17, 30)
    group = ("rendezvous=etcd", f"rendezvous.endpoint={etcd.endpoint}", "elastic.max_nodes=2", *course.overrides)
    group = (*group, "rendezvous.last_call_timeout=0", "rendezvous.join_timeout=5", "restart.max_restarts=0")
    one = start_node("one", "run", *group)
    course.wait_at(5, one)
    two = start_node("two", "run", *group)
    joined = wait_for_world(one, 2, after=0)
    course.open(5)
    course.wait_at(17, one)

    spares = [start_node(name, "run", *group) for name in ("three", "four")]
    for spare in spares:
        spare.wait_until(lambda: "this one is a spare" in spare.stdout)  # noqa: B023
    waited = time.monotonic() + 7
    one.wait_until(lambda: time.monotonic() > waited)  # longer than a node waits for others
    assert max(event["generation"] for event in one.events("generation_started")) == joined
    two.process.send_signal(signal.SIGTERM)
    two.finish(code=143)
    wait_for_world(one, 2, after=joined)
    course.open(17)
    course.wait_at(30, one)
    course.open(30)
    for node in (one, *spares):
        node.finish()
    assert [spare.stdout.count("this one is a spare") for spare in spares] == [1, 1]
    assert sorted("was not needed" in spare.stdout for spare in spares) == [False, True]
    assert (one.result["restarts"], one.result["steps_lost"]) == (0, 0)
    assert one.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


def test_nodes_when_the_host_of_the_store_leaves_then_the_same_command_goes_on_without_loss(
    start_node: StartNode, tmp_path: Path
) -> None:
    course = Gated(tmp_path, 5, 17)
    group = (*c10d(1, 2), *course.overrides)
    host = start_node("one", "own_1", *group)
    course.wait_at(5, host)
    two = start_node("two", "own_2", *group)
    wait_for_world(host, 2, after=0)
    course.open(5)
    course.wait_at(17, host)
    host.process.send_signal(signal.SIGTERM)
    host.finish(code=143)
    two.finish(code=144)
    course.open(17)
    assert "the node that hosts the store of rendezvous=c10d is gone" in two.stderr
    again = start_node("one", "own_1", *group), start_node("two", "own_2", *group)
    for node in again:
        node.finish()
    (leader,) = (node for node in again if [event["step"] for event in node.events("run_finished")][-1:] == [60])
    assert leader.result["steps_lost"] == 0
    assert leader.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


def test_nodes_when_a_newcomer_cannot_train_then_it_leaves_and_the_others_go_on(
    start_node: StartNode, tmp_path: Path
) -> None:
    course = Gated(tmp_path, 5, 17)
    group = (*c10d(1, 2), *course.overrides)
    one = start_node("one", "own_1", *group)
    course.wait_at(5, one)
    missing = tmp_path / "missing"
    unfit = start_node("two", "own_2", *group, f"+callbacks.a={{_target_: probes.NeedsFile, path: {missing}}}")
    unfit.finish(code=1)
    assert "FileNotFoundError" in unfit.stderr
    alone = wait_for_world(one, 1, after=1)
    missing.touch()
    fit = start_node("two", "own_2", *group)
    wait_for_world(one, 2, after=alone)
    course.open(5)
    course.open(17)
    for node in (one, fit):
        node.finish()
    assert one.result["steps_lost"] == 0
    assert one.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


@pytest.mark.parametrize("other", ["data.batch_size=32", "seed=7", "optimizer.lr=0.2"])
def test_nodes_when_one_would_train_something_else_then_it_is_refused_and_the_others_go_on(
    start_node: StartNode, tmp_path: Path, other: str
) -> None:
    course = Gated(tmp_path, 5)
    group = (*c10d(1, 2), *course.overrides)
    one = start_node("one", "own_1", *group)
    course.wait_at(5, one)
    stranger = start_node("two", "own_2", *group, other)
    stranger.finish(code=2)
    key, _, value = other.partition("=")
    assert (
        f"run_id=run is a run of other nodes, and this node would train something else:\n  {key}: " in stranger.stderr
    )
    assert f" -> {value}\n" in stranger.stderr
    course.open(5)
    one.finish()
    assert one.result["generations"] == 1


def test_nodes_when_a_frozen_one_wakes_up_then_it_writes_nothing_into_the_run_of_the_others(
    start_node: StartNode, tmp_path: Path, etcd: Etcd
) -> None:
    course = Gated(tmp_path, 5, 19, 25, 45)
    group = ("rendezvous=etcd", f"rendezvous.endpoint={etcd.endpoint}", "elastic.max_nodes=2", *course.overrides)
    group = (*group, "rendezvous.last_call_timeout=0", "restart.max_restarts=0")
    one = start_node("one", "run", *group)
    course.wait_at(5, one)
    two = start_node("two", "run", *group)
    joined = wait_for_world(one, 2, after=0)
    course.open(5)
    course.wait_at(19, one)

    one.process.send_signal(signal.SIGSTOP)  # its worker, rank 0, goes on, and hands it a state to write at step 20
    course.open(19)
    course.wait_at(25, two)
    alone = wait_for_world(two, 1, after=joined)
    course.open(25)
    course.wait_at(45, two)
    two.wait_for_checkpoint(40)
    saved = len(two.events("checkpoint_saved"))
    one.process.send_signal(signal.SIGCONT)
    wait_for_world(two, 2, after=alone)
    assert "another one has taken over" in (two.folder / "logs" / "agent_one.log").read_text()
    assert len(two.events("checkpoint_saved")) == saved
    course.open(45)
    for node in (one, two):
        node.finish()
    assert two.result["steps_lost"] == 0
    assert two.result["weights_sha256"] == undisturbed(start_node)["weights_sha256"]


def test_nodes_when_the_host_of_the_store_dies_then_the_others_end_with_144_and_a_sentence_r07(
    start_node: StartNode, tmp_path: Path
) -> None:
    course = Gated(tmp_path, 5, 12)
    group = (*c10d(1, 2), *course.overrides)
    host = start_node("one", "own_1", *group)
    course.wait_at(5, host)
    two = start_node("two", "own_2", *group)
    joined = wait_for_world(host, 2, after=0)
    course.open(5)
    course.wait_at(12, host)
    two.process.send_signal(signal.SIGTERM)
    two.finish(code=143)
    alone = wait_for_world(host, 1, after=joined)
    three = start_node("three", "own_3", *group)
    wait_for_world(host, 2, after=alone)
    kill(host)
    three.finish(code=144)
    assert "is lost: the node that hosts the store of rendezvous=c10d is gone or cut off" in three.stderr
    assert "stays in this machine's memory" in three.stdout


def test_nodes_when_workers_fail_on_both_then_the_budget_is_the_jobs_p01(start_node: StartNode, tmp_path: Path) -> None:
    course = Gated(tmp_path, 5, 12)
    group = (*c10d(2, 2), *course.overrides, "restart.max_restarts=1")
    nodes = start_node("one", "own_1", *group), start_node("two", "own_2", *group)
    for restarts, (step, node) in enumerate(zip((5, 12), nodes, strict=True)):
        course.wait_at(step, node)
        node.wait_until(lambda: len(node.events("generation_started")) > restarts)  # noqa: B023
        os.kill(node.workers()[0], signal.SIGKILL)
        course.open(step)
    for node in nodes:
        node.finish(code=1)
        assert "restart budget spent (1 of 1)" in node.stderr
    assert course.trained() == list(range(1, 13))


def test_nodes_when_one_fails_then_all_of_them_name_the_worker_that_did_p11(
    start_node: StartNode, tmp_path: Path
) -> None:
    chance = random.Random(11)
    kinds = {"raise:ValueError": "raised", "signal:SIGKILL": "was killed", "signal:SIGSTOP": "stood still"}
    faults = [(step, chance.randrange(2), chance.choice([*kinds])) for step in range(2, 42, 2)]
    told = ",".join(f"'{step}:{rank}:{fault}'" for step, rank, fault in faults)
    group = (
        *c10d(2, 2),
        "model._target_=endings.FailingOftenMLP",
        f"+model.folder={tmp_path}",
        f"+model.faults=[{told}]",
        "watchdog.hang_timeout=3",
        "restart.max_restarts=-1",
        "restart.backoff.initial_seconds=0",
        "trainer.max_epochs=4",
    )
    nodes = start_node("one", "own_1", *group), start_node("two", "own_2", *group)
    for node in nodes:
        node.finish(seconds=280)
        named = re.findall(r"rank (\d) on (?:one|two) (raised|was killed|stood still)", node.stdout)
        assert named == [(str(rank), kinds[fault]) for _, rank, fault in faults]
        for event in node.events("worker_failed"):
            assert not event["consequence"] or event["name"] != "ValueError"
