"""Agents in processes of their own, killed, stopped and started over a real etcd and over a store of torch's."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.etcd import Etcd, free_ports
from tests.integration.modules import rendezvous_node

pytestmark = pytest.mark.long

SECONDS = 60.0


FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload([rendezvous_node.__name__])  # or each agent would import torch


class Agent:
    """A process that runs ``rendezvous_node``."""

    def __init__(self, output: Path, group: dict[str, Any], elastic: dict[str, Any], run_id: str) -> None:
        self._output = output
        output.touch()
        theirs, self._commands = FORKSERVER.Pipe(duplex=False)
        arguments = (group, elastic, run_id, output, theirs)
        self.process = FORKSERVER.Process(target=rendezvous_node.run, args=arguments)
        self.process.start()

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def said(self) -> list[dict[str, Any]]:
        lines = self._output.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def round(self) -> dict[str, Any]:
        """The newest round it was in."""
        rounds = [facts for facts in self.said if "rank" in facts]
        return rounds[-1] if rounds else {}

    def tell(self, line: str) -> None:
        self._commands.send(line)

    def wait_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain: {self._output.read_text()}")
            time.sleep(0.01)

    def finish(self, code: int = 0) -> None:
        self.process.join(SECONDS)
        assert self.process.exitcode == code, self._output.read_text()


StartAgent = Callable[..., Agent]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts an agent; kills it after the test."""
    agents: list[Agent] = []

    def start(group: dict[str, Any], run_id: str = "run", min_nodes: int = 1, max_nodes: int = 3) -> Agent:
        elastic = {"min_nodes": min_nodes, "max_nodes": max_nodes}
        agents.append(Agent(tmp_path / f"agent{len(agents)}.txt", group, elastic, run_id))
        return agents[-1]

    yield start
    for agent in agents:
        agent.process.kill()
        agent.process.join()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd with both APIs."""
    server = Etcd(tmp_path_factory.mktemp("etcd"), "--enable-v2=true")
    server.wait()
    yield server
    server.stop()


def in_one_round(*agents: Agent, after: int = -1) -> bool:
    """Whether they are all, and alone, in a round newer than the given generation."""
    rounds = [agent.round for agent in agents]
    alike = {(each.get("generation"), each.get("nodes")) for each in rounds}
    return len(alike) == 1 and rounds[0].get("nodes") == len(agents) and rounds[0]["generation"] > after


def by_rank(*agents: Agent) -> list[Agent]:
    return sorted(agents, key=lambda agent: agent.round["rank"])


@pytest.mark.parametrize("backend", ["etcd", "etcd_v2"])
def test_nodes_when_they_come_die_leave_and_freeze_then_the_others_go_on(
    start_agent: StartAgent, etcd: Etcd, backend: str
) -> None:
    group = {"backend": backend, "endpoint": etcd.endpoint, "last_call_timeout": 30.0}
    agents = [start_agent(group, run_id=backend) for _ in range(3)]
    agents[0].wait_until(lambda: in_one_round(*agents))
    first, second, third = by_rank(*agents)
    stores = {str(first.round["store"])}

    first.process.kill()  # rank 0, which hosts the store of the round
    second.wait_until(lambda: in_one_round(second, third, after=0))
    assert (second.round["rank"], third.round["rank"]) == (0, 1)
    stores.add(str(second.round["store"]))

    newcomer = start_agent(group, run_id=backend)
    second.wait_until(lambda: in_one_round(second, third, newcomer, after=1))
    assert [agent.round["rank"] for agent in (second, third, newcomer)] == [0, 1, 2]
    stores.add(str(second.round["store"]))

    third.tell("leave")
    third.finish()
    second.wait_until(lambda: in_one_round(second, newcomer, after=2))

    newcomer.send_signal(signal.SIGSTOP)
    second.wait_until(lambda: in_one_round(second, after=3))
    newcomer.send_signal(signal.SIGCONT)
    newcomer.wait_until(lambda: in_one_round(second, newcomer, after=4))
    assert "fenced" in [facts.get("change") for facts in newcomer.said]
    assert second.round["rank"] == 0

    newcomer.tell("fail")
    newcomer.wait_until(lambda: in_one_round(second, newcomer, after=5))
    assert (second.round["failures"], newcomer.round["failures"]) == (1, 1)
    assert len(stores) == 3
    second.tell("finish")
    newcomer.tell("finish")
    second.finish()
    newcomer.finish()

    again = start_agent({**group, "last_call_timeout": 0.0}, run_id=backend)  # R02: at once, with the same command
    again.wait_until(lambda: again.round)
    assert (again.round["launch"], again.round["failures"]) == (f"{backend}.2", 0)


def test_nodes_when_there_are_too_many_then_the_spare_waits_and_is_told_of_the_end(
    start_agent: StartAgent, etcd: Etcd
) -> None:
    group = {"backend": "etcd", "endpoint": etcd.endpoint, "last_call_timeout": 0.0}
    one = start_agent(group, run_id="spare", max_nodes=1)
    one.wait_until(lambda: one.round)
    two = start_agent(group, run_id="spare", max_nodes=1)
    other_run = start_agent(group, run_id="other", max_nodes=1)  # R02: two runs on one etcd
    other_run.wait_until(lambda: other_run.round)
    two.wait_until(lambda: _known(etcd, "spare") == 2)
    assert [facts.get("change") for facts in one.said] == [None]
    one.tell("finish")
    one.finish()
    two.finish()
    assert two.said == [{"told": "run spare has finished; this node was not needed"}]


def _known(etcd: Etcd, run_id: str) -> int:
    return len(etcd.state(f"/elastic-harness/{run_id}")["nodes"])


def test_store_when_its_host_is_killed_then_the_others_end_with_144_and_a_sentence_r07(start_agent: StartAgent) -> None:
    group = {"endpoint": f"127.0.0.1:{free_ports(1)[0]}", "last_call_timeout": 30.0}
    host = start_agent(group, max_nodes=2)
    host.wait_until(lambda: _listens(host))
    other = start_agent(group, max_nodes=2)
    other.wait_until(lambda: in_one_round(host, other))
    host.process.kill()
    other.finish(144)
    assert other.said[-1]["error"].startswith(f"rendezvous.endpoint={group['endpoint']} is lost: the node that hosts")


def _listens(agent: Agent) -> bool:
    return any(connection.status == "LISTEN" for connection in psutil.Process(agent.process.pid).net_connections("tcp"))


def test_static_nodes_when_one_is_killed_then_the_run_ends_and_says_so(start_agent: StartAgent) -> None:
    group = {"backend": "static", "endpoint": f"127.0.0.1:{free_ports(1)[0]}", "last_call_timeout": 0.0}
    host = start_agent(group, min_nodes=2, max_nodes=2)
    host.wait_until(lambda: _listens(host))
    other = start_agent(group, min_nodes=2, max_nodes=2)
    host.wait_until(lambda: in_one_round(host, other))
    other.process.kill()
    host.finish(1)
    assert host.said[-1]["closed"].endswith("and with rendezvous=static no other one can take its place")


def test_nodes_when_there_are_too_few_then_they_end_with_144_and_name_the_key(
    start_agent: StartAgent, etcd: Etcd
) -> None:
    group = {"backend": "etcd", "endpoint": etcd.endpoint, "join_timeout": 1.0}
    alone = start_agent(group, run_id="few", min_nodes=2)
    alone.finish(144)
    assert alone.said[-1]["error"].startswith("rendezvous.join_timeout=1 s have passed and no round with at least")
