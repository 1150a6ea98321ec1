"""Several nodes train one run: agents in processes of their own, each with its own machine name and shared memory."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.etcd import Etcd, free_ports
from tests.integration.conftest import MODULES, PROJECT, Run, traced

StartNode = Callable[..., Run]

# A machine name and shared memory of its own make a process a node.
_AS_NODE = 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && exec "$@"'


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts ``train.py`` with the digits recipe on a node of its own, with one worker; cleans up."""
    nodes: list[Run] = []

    def start(name: str, folder: str, *overrides: str) -> Run:
        command = [
            *("unshare", "--uts", "--mount", "sh", "-c", _AS_NODE, name),
            *(sys.executable, str(PROJECT / "train.py"), "+experiment=digits_mlp", "run_id=run"),
            f"hydra.run.dir={tmp_path / folder}",
            "elastic.nproc_per_node=1",
            "elastic.num_threads=1",
            "checkpoint.every_n_steps=20",
            "trainer.max_epochs=5",
            "data.batch_size=64",
            *overrides,
        ]
        nodes.append(Run(tmp_path / folder, command, PROJECT, {}))
        return nodes[-1]

    yield start
    for node in nodes:
        node.clean_up()


def c10d(min_nodes: int, max_nodes: int) -> tuple[str, ...]:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    return (f"rendezvous.endpoint={endpoint}", f"elastic.min_nodes={min_nodes}", f"elastic.max_nodes={max_nodes}")


def undisturbed(start_node: StartNode, *overrides: str, workers: int = 2) -> dict[str, Any]:
    """The result of the same run on one node."""
    run = start_node("alone", "undisturbed", f"elastic.nproc_per_node={workers}", *overrides)
    run.finish()
    return run.result


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
