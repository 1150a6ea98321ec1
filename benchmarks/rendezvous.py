"""What many nodes in one rendezvous cost: seconds until all are in one round, and operations of the store.

    python benchmarks/rendezvous.py             # with etcd

Each node is a thread with a handler as an agent has it, without workers; all talk to one etcd on this machine, and
share the store that rank 0 hosts for a round in place of connecting to it. They start within a second; then one dies
unseen, and one leaves. "refused" are writes that came too late and were tried again; "kB" is how large the state is.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from peers.sides import PROJECT
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from elastic_harness import rendezvous
from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.rendezvous import ElasticRendezvous, round_store

sys.path.append(str(PROJECT))

from tests.etcd import Etcd

SECONDS = 300.0


class Counting(RendezvousBackend):
    """Counts what a backend is asked."""

    counts: ClassVar[Counter[str]] = Counter()
    size = 0

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        """See base class."""
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        """See base class."""
        Counting.counts["reads"] += 1
        return self._backend.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See base class."""
        written = self._backend.set_state(state, token)
        Counting.counts["writes" if written is not None and written[2] else "refused"] += 1
        Counting.size = max(Counting.size, len(state))
        return written


class Node(threading.Thread):
    """A node: joins round after round until it is told to end."""

    def __init__(self, config: RendezvousConfig, nodes: int) -> None:
        super().__init__(daemon=True)
        self._config, self._nodes = config, nodes
        self.world = 0
        self.handler: ElasticRendezvous | None = None
        self._ended = False

    def run(self) -> None:
        """See base class."""
        self.handler = handler = rendezvous.create(
            self._config, "benchmark", ElasticConfig(min_nodes=1, max_nodes=self._nodes)
        )
        while not self._ended:
            self.world = handler.next_rendezvous().world_size
            while handler.changed() is None and not self._ended:
                handler.reader.poll(0.1)

    def die(self) -> None:
        """Be gone, without a word."""
        assert self.handler is not None
        self._ended = True
        self.join()
        self.handler._contact.stop(SECONDS)

    def leave(self) -> None:
        """Leave politely."""
        assert self.handler is not None
        self._ended = True
        self.join()
        self.handler.shutdown()


def _share_stores() -> None:
    host, stores = round_store.host, {}

    def hosted(address: str) -> TCPStore:
        store = host(address)
        stores[store.port] = store
        return store

    round_store.host = hosted
    round_store.connect = lambda _, port: stores.get(port)


def measured(what: str, nodes: list[Node], began: float) -> None:
    """Wait until these nodes are alone in one round, and print what that took."""
    deadline = time.monotonic() + SECONDS
    while any(node.world != len(nodes) for node in nodes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: worlds of {Counter(node.world for node in nodes)}")
        time.sleep(0.005)
    counts, Counting.counts = Counting.counts, Counter()
    numbers = "".join(f"{counts[name]:10}" for name in ("reads", "writes", "refused"))
    print(f"{what:28}{time.monotonic() - began:9.2f}{numbers}{Counting.size / 1000:8.1f}")


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64, help="how many (default: 64)")
    arguments = parser.parse_args()
    if shutil.which("etcd") is None:
        print("left out: it needs etcd")
        return
    connect: Any = rendezvous.connect
    rendezvous.connect = lambda *everything: Counting(connect(*everything))  # type: ignore[assignment]
    _share_stores()
    with tempfile.TemporaryDirectory() as folder:
        etcd = Etcd(Path(folder))
        try:
            etcd.wait()
            config = RendezvousConfig(backend="etcd", endpoint=etcd.endpoint, last_call_timeout=2.0)
            nodes = [Node(config, arguments.nodes) for _ in range(arguments.nodes)]
            print(f"{'':28}{'seconds':>9}{'reads':>10}{'writes':>10}{'refused':>10}{'kB':>8}")
            began = time.monotonic()
            for node in nodes:
                node.start()
            measured(f"{len(nodes)} nodes start", nodes, began)
            began = time.monotonic()
            nodes.pop().die()
            measured("one dies", nodes, began)
            began = time.monotonic()
            nodes.pop().leave()
            measured("one leaves", nodes, began)
            for node in nodes:
                node.die()
        finally:
            etcd.stop()


if __name__ == "__main__":
    main()
