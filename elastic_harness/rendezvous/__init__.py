"""Rendezvous: how the nodes of a run find each other and agree on a generation."""

from __future__ import annotations

import socket

from torch.distributed.elastic.rendezvous import RendezvousHandler

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ConfigError
from elastic_harness.rendezvous.single_node import SingleNodeRendezvous


def create(rendezvous: RendezvousConfig, run_id: str) -> RendezvousHandler:
    """The handler for a configuration.

    Args:
        rendezvous: backend and address.
        run_id: name of the run.

    Raises:
        ConfigError: ``local_addr`` is not an address of this machine.
    """
    address = rendezvous.local_addr or "127.0.0.1"
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        raise ConfigError(
            f"rendezvous.local_addr={address} must be an address of this machine ({error.strerror or error}): "
            "correct it, or leave it out for the loopback address."
        ) from error
    return SingleNodeRendezvous(run_id, address)
