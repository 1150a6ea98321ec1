"""Nodes for the integration tests: agents in processes of their own, each with its own machine name and memory."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.etcd import free_ports
from tests.integration.conftest import PROJECT, Run, traced
from tests.network import as_node

StartNode = Callable[..., Run]


class Nodes:
    """Starts ``train.py`` with the digits recipe on nodes, with one worker each.

    Args:
        folder: the run folders lie below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Run] = []

    def start(self, name: str, folder: str, *overrides: str, place: Sequence[str] = ()) -> Run:
        """Start one.

        Args:
            name: of the machine.
            folder: name of the run folder.
            overrides: more of them.
            place: what runs a program where the node is.
        """
        command = [
            *place,
            *as_node(name),
            *(sys.executable, str(PROJECT / "train.py"), "+experiment=digits_mlp", "run_id=run"),
            f"hydra.run.dir={self._folder / folder}",
            "elastic.nproc_per_node=1",
            "elastic.num_threads=1",
            "checkpoint.every_n_steps=20",
            "trainer.max_epochs=5",
            "data.batch_size=64",
            *overrides,
        ]
        self._started.append(Run(self._folder / folder, command, PROJECT, {}))
        return self._started[-1]

    def clean_up(self) -> None:
        """End whatever is left of them."""
        for node in self._started:
            node.clean_up()


def c10d(min_nodes: int, max_nodes: int) -> tuple[str, ...]:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    return (f"rendezvous.endpoint={endpoint}", f"elastic.min_nodes={min_nodes}", f"elastic.max_nodes={max_nodes}")


def undisturbed(start_node: StartNode, *overrides: str, workers: int = 2) -> dict[str, Any]:
    """The result of the same run on one node."""
    run = start_node("alone", "undisturbed", f"elastic.nproc_per_node={workers}", *overrides)
    run.finish()
    return run.result


class Gated:
    """Lets the nodes train up to one gate after the other.

    Args:
        folder: for the trace and the gates.
        gates: steps after which the workers wait.
    """

    def __init__(self, folder: Path, *gates: int) -> None:
        self._folder, self._trace = folder, folder / "trace"
        self.overrides = (
            f"+callbacks.trace={{_target_: probes.StepTrace, path: {self._trace}}}",
            f"+callbacks.gates={{_target_: probes.Gates, folder: {folder}, steps: [{','.join(map(str, gates))}]}}",
        )

    def wait_at(self, step: int, node: Run) -> None:
        node.wait_until(lambda: self._trace.exists() and traced(self._trace) == step)

    def open(self, step: int) -> None:
        (self._folder / str(step)).touch()

    def trained(self, rank: int = 0) -> list[int]:
        """The steps that were finished on a rank, in the order of time."""
        lines = map(json.loads, self._trace.read_text().splitlines())
        return [line["step"] for line in lines if line["rank"] == rank]


def wait_for_world(node: Run, size: int, *, after: int) -> int:
    """Wait until workers of a generation after the given one train in a world of that size; its number."""

    def started() -> int:
        found = [event["generation"] for event in node.events("resumed") if event["world_size"] == size]
        return max((number for number in found if number > after), default=0)

    number: int = node.wait_until(started)
    return number


def kill(node: Run) -> None:
    """A node that is gone at once: its agent, and its workers with it."""
    pids = [worker["pid"] for event in node.events("generation_started") for worker in event["workers"]]
    own = [pid for pid in pids if psutil.pid_exists(pid) and _agent_of(pid) == node.process.pid]
    for pid in (node.process.pid, *own):
        os.killpg(pid, signal.SIGKILL)


def _agent_of(worker: int) -> int | None:
    zygote = psutil.Process(worker).parent()
    return zygote.ppid() if zygote is not None else None
