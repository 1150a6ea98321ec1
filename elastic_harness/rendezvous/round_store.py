"""The store of a round: hosted by the agent of rank 0, new for each round, on a port that the system chooses."""

from __future__ import annotations

import logging
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from elastic_harness.rendezvous.endpoints import answers

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = timedelta(seconds=10)
_TIMEOUT = timedelta(minutes=5)


def host(address: str) -> TCPStore:
    """A store at an address of this node."""
    return TCPStore(address, 0, None, True, _TIMEOUT, wait_for_workers=False)


def connect(address: str, port: int) -> TCPStore | None:
    """The store of another node; None if it does not answer."""
    if not answers(address, port):
        return None
    try:
        store = TCPStore(address, port, is_master=False, timeout=_CONNECT_TIMEOUT)
    except DistError as error:
        log.info("the store of this round at %s:%d: %s", address, port, error)
        return None
    store.set_timeout(_TIMEOUT)
    return store
