"""Rendezvous: how the nodes of a run find each other and agree on a generation.

handler.py     torch's RendezvousHandler, and what the agent asks besides
round_store.py the store of a round
contact.py     the thread that keeps this node alive
view.py        what a node sees: its round, and why that is over
member.py      one node's decisions (pure)
state.py       what all nodes know, and how it changes (pure)
liveness.py    who is alive (pure)
backends.py    where the state is: in a store of torch's (c10d, static) or in etcd (etcd.py, etcd_session.py)
etcd_check.py  what can be wrong with an etcd
endpoints.py   addresses
torchrun.py    the etcd v3 backend for plain torchrun
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.rendezvous.backends import connect
from elastic_harness.rendezvous.endpoints import address_of_this_node, interface_of, spelt
from elastic_harness.rendezvous.handler import ElasticRendezvous
from elastic_harness.rendezvous.state import FULL_PACE_NODES, Node, Rules
from elastic_harness.rendezvous.view import Change, Kind, Round


def create(
    rendezvous: RendezvousConfig,
    run_id: str,
    elastic: ElasticConfig | None = None,
    *,
    workers: int = 1,
    newest_generation: int = -1,
    settled: Mapping[str, Any] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> ElasticRendezvous:
    """The handler for a configuration, its backend checked to work.

    Args:
        rendezvous: backend and endpoint.
        run_id: name of the run; two runs share nothing.
        elastic: how many nodes take part; None: this one.
        workers: workers of this node.
        newest_generation: the newest generation that this node's run folder knows of; -1: none.
        settled: what this node settles for all if it is the first of a launch; plain JSON.
        on_wait: called again and again while something is waited for; may raise to give up.

    Raises:
        ConfigError: the endpoint is not what it should be, a package is missing, a local address is none.
        ClusterError: the endpoint cannot be reached.
    """
    elastic = elastic or ElasticConfig()
    name = os.uname().nodename
    address = address_of_this_node(rendezvous)
    return ElasticRendezvous(
        connect(rendezvous, run_id, on_wait),
        run_id,
        Node(name, address, workers, newest_generation),
        f"{name}-{os.getpid()}-{secrets.token_hex(3)}",
        Rules(
            min_nodes=elastic.min_nodes,
            max_nodes=elastic.max_nodes,
            last_call=rendezvous.last_call_timeout,
            # The same on all nodes, whoever is there: a node must fence itself before the others expel it.
            interval=rendezvous.keep_alive_interval * max(1.0, elastic.max_nodes / FULL_PACE_NODES),
            attempts=rendezvous.keep_alive_attempts,
            fixed=rendezvous.backend == "static",
            private=not rendezvous.endpoint,
        ),
        settled=settled or {},
        join_timeout=rendezvous.join_timeout,
        endpoint=spelt(rendezvous),
        on_wait=on_wait,
    )


__all__ = [
    "Change",
    "ElasticRendezvous",
    "Kind",
    "Round",
    "address_of_this_node",
    "connect",
    "create",
    "interface_of",
    "spelt",
]
