"""The handler over a store of torch's, several in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousConnectionError, RendezvousInfo

from elastic_harness import rendezvous
from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.rendezvous import ElasticRendezvous, Kind
from tests.etcd import free_ports

Start = Callable[..., ElasticRendezvous]
SECONDS = 30.0


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes a handler of one run, its store in this process; shuts it down."""
    handlers: list[ElasticRendezvous] = []
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"

    def start(min_nodes: int = 1, max_nodes: int = 4, **arguments: Any) -> ElasticRendezvous:
        config = RendezvousConfig(endpoint=endpoint, last_call_timeout=0.0, keep_alive_interval=0.2)
        elastic = ElasticConfig(min_nodes=min_nodes, max_nodes=max_nodes)
        handlers.append(rendezvous.create(config, "run", elastic, **arguments))
        return handlers[-1]

    yield start
    for handler in reversed(handlers):  # the first one hosts the store
        handler.shutdown()


def join(*handlers: ElasticRendezvous) -> list[RendezvousInfo]:
    """All of them join the next round."""
    infos: dict[int, RendezvousInfo] = {}

    def next_rendezvous(index: int) -> None:
        infos[index] = handlers[index].next_rendezvous()

    threads = [threading.Thread(target=next_rendezvous, args=(index,)) for index in range(len(handlers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return [infos[index] for index in range(len(handlers))]


def kind(handler: ElasticRendezvous) -> Kind:
    """Wait until the round is over for a handler, and say why."""
    assert handler.reader.poll(SECONDS)
    change = handler.changed()
    assert change is not None
    return change.kind


def test_handler_when_alone_then_each_round_has_a_store_of_its_own() -> None:
    handler = rendezvous.create(RendezvousConfig(), "run")
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    assert (first.rank, first.world_size) == (0, 1)
    assert first.bootstrap_store_info is not None
    assert second.bootstrap_store_info is not None
    assert first.bootstrap_store_info.master_port != second.bootstrap_store_info.master_port
    first.store.set("seen", "before")
    assert not second.store.check(["seen"])
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("c10d", "run.1", True)
    assert (handler.changed(), handler.num_nodes_waiting(), handler.is_closed()) == (None, 0, False)
    assert handler.shutdown()


def test_handler_when_two_join_then_both_reach_the_store_of_rank_0(start: Start) -> None:
    one, two = start(min_nodes=2, workers=3), start(min_nodes=2, workers=1)
    infos = join(one, two)
    assert sorted(info.rank for info in infos) == [0, 1]
    infos[0].store.set("from", "one")
    assert infos[1].store.get("from") == b"one"
    assert one.round is not None
    assert sorted(node.workers for node in one.round.members.values()) == [1, 3]
    assert list(one.round.members) == list(two.round.members)  # type: ignore[union-attr]


def test_handler_when_a_node_comes_then_the_reader_wakes_the_others_once_a_round(start: Start) -> None:
    one = start()
    join(one)
    two = start()
    waiting = threading.Thread(target=two.next_rendezvous)
    waiting.start()
    assert kind(one) is Kind.JOIN
    assert one.num_nodes_waiting() == 1
    one.next_rendezvous()
    waiting.join(SECONDS)
    assert not one.reader.poll()
    two.leave()
    assert kind(one) is Kind.LEAVE


def test_handler_when_both_charge_a_failure_then_one_is_counted(start: Start) -> None:
    one, two = start(min_nodes=2), start(min_nodes=2)
    join(one, two)
    first = one.charge_restart({"name": "ValueError"})
    assert [dict(failure) for failure in first] == [{"generation": 0, "name": "ValueError"}]
    assert two.charge_restart({"name": "DistError"}) == first
    assert join(one, two)[0].world_size == 2
    assert two.failures == first


def test_handler_when_the_run_fails_then_every_node_is_told_why(start: Start) -> None:
    one, two = start(min_nodes=2), start(min_nodes=2)
    join(one, two)
    one.close("rank 0 raised ValueError")
    assert kind(two) is Kind.CLOSED
    assert two.is_closed()
    with pytest.raises(RendezvousClosedError, match="rank 0 raised ValueError"):
        two.next_rendezvous()


def test_handler_when_waiting_is_given_up_then_the_exception_comes_through_and_the_node_leaves(start: Start) -> None:
    def give_up() -> None:
        raise KeyboardInterrupt

    one = start(min_nodes=2)
    one.on_wait = give_up
    with pytest.raises(KeyboardInterrupt):
        one.next_rendezvous()


def test_keep_alive_when_the_backend_fails_for_a_while_then_it_goes_on(start: Start, monkeypatch: Any) -> None:
    one = start()
    join(one)
    backend = one._contact._backend
    assert backend is not None
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise RendezvousConnectionError("broken for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "get_state", fail)
        assert failed.wait(SECONDS)
    two = start()
    waiting = threading.Thread(target=two.next_rendezvous)
    waiting.start()
    assert kind(one) in (Kind.JOIN, Kind.FENCED)
    one.next_rendezvous()
    waiting.join(SECONDS)


def test_node_when_the_backend_hangs_then_it_is_fenced_without_waiting_and_comes_back(
    start: Start, monkeypatch: Any
) -> None:
    one = start()
    join(one)
    backend = one._contact._backend
    assert backend is not None
    release = threading.Event()
    get_state = backend.get_state
    monkeypatch.setattr(backend, "get_state", lambda: release.wait(SECONDS) and get_state())
    deadline = time.monotonic() + SECONDS
    while (change := one.changed()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert change.kind is Kind.FENCED
    while time.monotonic() - (one._contact.answered or 0) < 2:  # longer than the others would wait for it
        time.sleep(0.01)
    release.set()
    assert join(one)[0].world_size == 1
