"""Rendezvous: how the nodes of a run find each other and agree on a generation."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler

from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.rendezvous.single_node import SingleNodeRendezvous


def create(elastic: ElasticConfig, rendezvous: RendezvousConfig, run_id: str) -> RendezvousHandler:
    """The handler for a configuration.

    Args:
        elastic: number of nodes.
        rendezvous: backend and addresses.
        run_id: distinguishes this launch of this run from every other.
    """
    return SingleNodeRendezvous(run_id, rendezvous.local_addr or "127.0.0.1")
