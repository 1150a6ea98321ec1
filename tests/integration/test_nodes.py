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
