"""Thirty seeded events over three nodes on a network of their own: they join, leave, die, freeze and are cut off."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd import Etcd, free_ports
from tests.integration.conftest import Run
from tests.integration.nodes import Gated, Nodes, kill, undisturbed
from tests.network import Network

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

NAMES = ("one", "two", "three")
EVENTS = 30
GATES = range(5, 5 + 8 * EVENTS, 8)
EPOCHS = f"trainer.max_epochs={GATES[-1] // 8 + 2}"  # three logical ranks make 8 steps an epoch


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    made = Network()
    yield made
    made.close()


class Chaos:
    """Three nodes, and what can happen to them. ``up`` are those that train.

    Args:
        nodes: starts them.
        network: they are on it.
        overrides: of each.
        ends_when_cut_off: a node that does not reach the rendezvous any more.
    """

    def __init__(self, nodes: Nodes, network: Network, *overrides: str, ends_when_cut_off: bool) -> None:
        self._nodes, self._network, self._overrides = nodes, network, overrides
        self._ends_when_cut_off = ends_when_cut_off
        self.up: dict[str, Run] = {}
        self.cut_off: dict[str, Run] = {}
        self._generation = -1

    def start(self, name: str) -> None:
        self.up[name] = self._nodes.start(name, "run", *self._overrides, place=self._network.command(name))

    def wait(self) -> None:
        """Wait until those that are up train, and nobody else."""

        def resumed() -> int:
            found = {event["generation"] for event in any_node.events("resumed") if event["world_size"] == len(self.up)}
            return max((each for each in found if each > self._generation), default=0)

        any_node = next(iter(self.up.values()))
        self._generation = any_node.wait_until(resumed)

    def possible(self, spared: str | None) -> list[tuple[str, str]]:
        """What can happen next, to whom; never to the last one that is up, nor to the one to be spared."""
        some = [name for name in self.up if name != spared] if len(self.up) > 1 else []
        happens = [(kind, name) for name in some for kind in ("leave", "kill", "cut", "freeze")]
        happens += [("worker", name) for name in self.up] if some else []
        happens += [("heal", name) for name in self.cut_off]
        gone = [name for name in NAMES if name not in self.up and name not in self.cut_off]
        return happens + [("start", name) for name in gone for _ in range(3)]

    def leave(self, name: str) -> None:
        node = self.up.pop(name)
        node.process.send_signal(signal.SIGTERM)
        node.finish(code=143)

    def kill(self, name: str) -> None:
        kill(self.up.pop(name))

    def cut(self, name: str) -> None:
        self._network.cut(name)
        node = self.up.pop(name)
        if self._ends_when_cut_off:
            node.finish(code=144)
            self._network.heal(name)
        else:
            self.cut_off[name] = node

    def heal(self, name: str) -> None:
        self._network.heal(name)
        self.up[name] = self.cut_off.pop(name)

    def freeze(self, name: str) -> None:
        node = self.up.pop(name)
        node.process.send_signal(signal.SIGSTOP)
        self.wait()
        node.process.send_signal(signal.SIGCONT)
        self.up[name] = node

    def worker(self, name: str) -> None:
        started = [event for event in self.up[name].events("generation_started") if event["node"] == name]
        os.kill(started[-1]["workers"][0]["pid"], signal.SIGKILL)


@pytest.mark.parametrize(("backend", "seed"), [("etcd", 1), ("c10d", 2)])
def test_nodes_when_thirty_things_happen_then_no_step_is_lost_and_the_weights_are_the_same(
    tmp_path: Path, network: Network, backend: str, seed: int
) -> None:
    nodes, course, chance = Nodes(tmp_path), Gated(tmp_path, *GATES), random.Random(seed)
    addresses = {name: network.add(name) for name in NAMES}
    etcd = Etcd(tmp_path, host=network.host) if backend == "etcd" else None
    endpoint = etcd.endpoint if etcd else f"{addresses['one']}:{free_ports(1)[0]}"
    chaos = Chaos(
        nodes, network, f"rendezvous={backend}", f"rendezvous.endpoint={endpoint}", "elastic.max_nodes=3", EPOCHS,
        *course.overrides, "rendezvous.last_call_timeout=0", "restart.max_restarts=-1",
        ends_when_cut_off=etcd is None,
    )  # fmt: skip
    try:
        if etcd:
            etcd.wait()
        chaos.start("one")
        chaos.up["one"].wait_until(lambda: chaos.up["one"].events("generation_started"))
        happened = []
        for gate in GATES:
            course.wait_at(gate, next(iter(chaos.up.values())))
            # The store of c10d lives with the node that was first.
            kind, name = chance.choice(chaos.possible(spared=None if etcd else "one"))
            happened.append(f"{kind} {name}")
            getattr(chaos, kind)(name)
            chaos.wait()
            course.open(gate)
        for name in [*chaos.cut_off]:
            chaos.heal(name)
        for node in chaos.up.values():
            node.finish(seconds=240)
        result = chaos.up["one" if "one" in chaos.up else next(iter(chaos.up))].result
        assert (result["status"], result["steps_lost"]) == ("finished", 0), happened
        restarts = sum(each.startswith("worker") for each in happened)
        assert result["restarts"] == restarts, happened
        expected = undisturbed(nodes.start, EPOCHS, workers=3)
        assert result["weights_sha256"] == expected["weights_sha256"], happened
    finally:
        nodes.clean_up()
        if etcd:
            etcd.stop()
