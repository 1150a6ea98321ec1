"""The rendezvous of a run on one node: nobody to wait for, a fresh store each generation."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class SingleNodeRendezvous(RendezvousHandler):
    """Every round has this node alone, rank 0 of 1.

    Each round gets a new TCPStore on a port that the store itself binds, so that nothing of an earlier generation is
    ever seen again, see docs/decisions/0003-one-store-a-generation.md. The machine's own name is never resolved.

    Args:
        run_id: id of the rendezvous.
        address: address of this node, as the workers reach it.
    """

    def __init__(self, run_id: str, address: str) -> None:
        self._run_id = run_id
        self._address = address
        self._closed = False

    def get_backend(self) -> str:
        return "c10d"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = TCPStore(self._address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(self._address, store.port))

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._closed = True
        return True
