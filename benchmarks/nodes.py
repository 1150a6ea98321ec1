"""Seconds that a run on several nodes stands still when one of them comes, goes or dies: this harness beside torchrun.

    python benchmarks/nodes.py                  # as root, with iproute2 and etcd

Both train ResNet-18 on the sample data, on nodes with one worker of one thread each. A node is a set of processes with
a network namespace, a machine name and shared memory of its own; cables lead to one bridge. For each event a run is
started anew, and the event happens once all nodes train:

- a worker of the second node is killed;
- the second node leaves politely (SIGTERM to its agent);
- the second node is killed, agent and worker at once;
- the cable of the second node is cut, so that nothing is closed;
- the node of rank 0 is killed;
- a node joins the one that trains: from its start to the first step of the larger world. "pause" is how long the first
  node made no step.

The others: from the event to the first new step of all nodes that are left. This harness uses etcd. torchrun uses its
c10d rendezvous, which lives on the first node, with a last call of 1 s and a keep-alive interval of 1 s in place of 30
and 5. What takes longer than a minute hangs, and is left out of the seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from peers.sides import OURS, PROJECT, THEIRS, Ended, Program, workspace

sys.path.append(str(PROJECT))

from tests.etcd import Etcd
from tests.network import Network, as_node

START_SECONDS = 120.0
HANG_SECONDS = 60.0
STEPS = 20
"""That all nodes have done before something happens, and a random moment."""
MOMENT_SECONDS = 2.0
PORT = 29400


class Outcome(NamedTuple):
    """How one event went.

    Args:
        kind: ``went on``, ``hung``, ``gave up`` or ``never began``.
        seconds: from the event to the first new step of all nodes.
        pause: between two steps of the node that had been there before.
    """

    kind: str
    seconds: float = 0.0
    pause: float = 0.0


class Cluster:
    """The nodes ``one`` and ``two`` of one side's run, on a network of their own; ``two`` may be started later.

    Args:
        side: ``OURS`` or ``THEIRS``.
        folder: of the nodes.

    Attributes:
        nodes: those that have been started.
        network: of them.
    """

    def __init__(self, side: str, folder: Path) -> None:
        self.nodes: dict[str, Program] = {}
        self._side = side
        self._folder = folder
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        self.network = self._closing.enter_context(contextlib.closing(Network()))
        self._addresses = {name: self.network.add(name) for name in ("one", "two")}
        self._etcd = Etcd(self._folder, host=self.network.host)
        self._closing.callback(self._etcd.stop)
        self._etcd.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start(self, name: str) -> Program:
        """Start a node."""
        place = [*self.network.command(name), *as_node(name), "env", "GLOO_SOCKET_IFNAME=eth0"]
        options = self._ours() if self._side == OURS else self._theirs(name)
        node = Program(self._side, self._folder, name, options=options, place=place, run=self._folder / "run")
        self.nodes[name] = self._closing.enter_context(node)
        return node

    def _ours(self) -> list[str]:
        return [
            f"run_id={self._folder.name}",
            "rendezvous=etcd",
            f"rendezvous.endpoint={self._etcd.endpoint}",
            "rendezvous.last_call_timeout=0",
            "elastic.nproc_per_node=1",
            "elastic.max_nodes=2",
        ]

    def _theirs(self, name: str) -> list[str]:
        return [
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-id={self._folder.name}",
            f"--rdzv-endpoint={self._addresses['one']}:{PORT}",
            f"--local-addr={self._addresses[name]}",
            "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1",
        ]


class Event(NamedTuple):
    """Something that happens to one of two nodes.

    Args:
        name: in the table.
        rank: of the node.
        cause: makes it happen, given the cluster and the name of the node.
        lost: whether the node is lost.
    """

    name: str
    rank: int
    cause: Callable[[Cluster, str], object]
    lost: bool = True


def kill_worker(cluster: Cluster, name: str) -> None:
    """The only one of the node."""
    os.kill(cluster.nodes[name].steps()[-1].pid, signal.SIGKILL)


EVENTS = [
    Event("worker killed", 1, kill_worker, lost=False),
    Event("node leaves", 1, lambda cluster, name: cluster.nodes[name].send_signal(signal.SIGTERM)),
    Event("node killed", 1, lambda cluster, name: cluster.nodes[name].stop()),
    Event("cable cut", 1, lambda cluster, name: cluster.network.cut(name)),
    Event("rank 0's node killed", 0, lambda cluster, name: cluster.nodes[name].stop()),
]


def happens(event: Event, cluster: Cluster, moments: random.Random) -> Outcome:
    """Start both nodes, let the event happen, and see how long it takes."""
    one = cluster.start("one")
    one.wait_for(one.steps, START_SECONDS)
    two = cluster.start("two")
    moment = moments.uniform(0.0, MOMENT_SECONDS)
    try:
        two.wait_for(lambda: len(two.steps()) > STEPS, START_SECONDS)
        moment += time.monotonic()
        two.wait_for(lambda: time.monotonic() >= moment, START_SECONDS)
    except (Ended, TimeoutError):
        return Outcome("never began")  # the first node may not take a second one in
    ranked = sorted(cluster.nodes, key=lambda name: cluster.nodes[name].steps()[-1].rank)
    hit = ranked[event.rank]
    left = [cluster.nodes[name] for name in ranked if not event.lost or name != hit]
    return _measured(left, lambda: event.cause(cluster, hit))


def joins(cluster: Cluster, moments: random.Random) -> Outcome:
    """Start a second node beside one that trains."""
    one = cluster.start("one")
    one.wait_for(lambda: len(one.steps()) > STEPS, START_SECONDS)
    moment = time.monotonic() + moments.uniform(0.0, MOMENT_SECONDS)
    one.wait_for(lambda: time.monotonic() >= moment, START_SECONDS)
    nodes = [one]
    return _measured(nodes, lambda: nodes.append(cluster.start("two")))


HAPPENINGS = {**{event.name: partial(happens, event) for event in EVENTS}, "node joins": joins}


def _measured(nodes: list[Program], cause: Callable[[], object]) -> Outcome:
    """From the cause to the first new step of all nodes."""
    earlier = {step.pid for node in nodes for step in node.steps()}
    began = time.time()
    cause()
    deadline = time.monotonic() + HANG_SECONDS
    try:
        for node in nodes:
            seconds = max(deadline - time.monotonic(), 0.1)
            node.wait_for(lambda node=node: any(step.pid not in earlier for step in node.steps()), seconds)
    except TimeoutError:
        return Outcome("hung")
    except Ended:
        return Outcome("gave up")
    firsts = [next(step.time for step in node.steps() if step.pid not in earlier) for node in nodes]
    last = max((step.time for step in nodes[0].steps() if step.pid in earlier), default=began)
    return Outcome("went on", max(firsts) - began, firsts[0] - last)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="times that each event happens to ours (default: 10)")
    parser.add_argument("--peer-rounds", type=int, default=2, help="times that it happens to torchrun (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "etcd"))):
        print("left out: it needs root, iproute2 and etcd")
        return
    moments = random.Random(arguments.seed)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    with workspace() as folder:
        for number in range(max(arguments.rounds, arguments.peer_rounds)):
            for side, rounds in ((OURS, arguments.rounds), (THEIRS, arguments.peer_rounds)):
                for name, happening in HAPPENINGS.items() if number < rounds else ():
                    place = Path(tempfile.mkdtemp(dir=folder))
                    with Cluster(side, place) as cluster:
                        outcome = happening(cluster, moments)
                    print(f"{side:22}{name:22}{outcome.kind:12}{outcome.seconds:8.2f}", file=sys.stderr)
                    outcomes.setdefault((name, side), []).append(outcome)
    print_table(outcomes)


def print_table(outcomes: dict[tuple[str, str], Sequence[Outcome]]) -> None:
    """One line for each event and side."""
    print(f"{'':22}{'':22}{'seconds':>9}{'worst':>8}{'pause':>8}{'of':>5}{'hung':>6}{'gave up':>9}{'never began':>13}")
    for (name, side), all_ in sorted(outcomes.items()):
        went = [each for each in all_ if each.kind == "went on"]
        kinds = [each.kind for each in all_]
        counts = f"{len(all_):5}{kinds.count('hung'):6}{kinds.count('gave up'):9}{kinds.count('never began'):13}"
        if not went:
            print(f"{name:22}{side:22}{'-':>9}{'-':>8}{'-':>8}{counts}")
            continue
        seconds = [each.seconds for each in went]
        pause = f"{statistics.median(each.pause for each in went):8.2f}" if name == "node joins" else f"{'':8}"
        print(f"{name:22}{side:22}{statistics.median(seconds):9.2f}{max(seconds):8.2f}{pause}{counts}")


if __name__ == "__main__":
    main()
