"""The etcd v3 backend for plain torchrun: ``torchrun --rdzv-backend etcd-v3 --rdzv-endpoint HOST:2379 ...``.

torch's own handler, with the state in etcd v3. Registered under the entry point group ``torchrun.handlers``, so
installing this package is enough. ``--rdzv-conf`` takes ``user``, ``password``, ``cacert``, ``cert``, ``key`` and
``read_timeout``, besides what torch's handler takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousParameters,
    dynamic_rendezvous,
)

from elastic_harness.config import RendezvousConfig
from elastic_harness.rendezvous.etcd import EtcdBackend
from elastic_harness.rendezvous.etcd_check import check_v3
from elastic_harness.rendezvous.etcd_session import EtcdSession, session_of

_PREFIX = "/torch/elastic"
_TTL_SECONDS = 7200
_POLL_SECONDS = 0.05
_TIMEOUT = timedelta(minutes=5)


def etcd_v3() -> RendezvousHandlerCreator:
    """What the entry point names: it returns the function that makes handlers."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """torch's handler for torchrun's arguments.

    Raises:
        ConfigError: the endpoint is not an etcd with the v3 API, or refuses certificate or login.
        ClusterError: the endpoint does not answer.
    """
    config = RendezvousConfig(
        backend="etcd",
        endpoint=params.endpoint,
        read_timeout=float(params.get("read_timeout", 5)),
        **{name: params.get(name) for name in ("user", "password", "cacert", "cert", "key")},
    )
    session = session_of(config)
    check_v3(session, config, _PREFIX)
    backend = EtcdBackend(session, f"{_PREFIX}/rendezvous/{params.run_id}", _TTL_SECONDS)
    store = EtcdStore(session, f"{_PREFIX}/store/{params.run_id}", _TTL_SECONDS)
    return dynamic_rendezvous.create_handler(store, backend, params)


class EtcdStore(Store):
    """The part of torch's store that its handler and agent use, each key one of etcd's.

    Args:
        session: to send requests with.
        prefix: of the keys.
        ttl: seconds that the keys outlive this process.
    """

    def __init__(self, session: EtcdSession, prefix: str, ttl: int) -> None:
        super().__init__()
        self._session, self._prefix, self._ttl = session, prefix, ttl
        self._keys: dict[str, EtcdBackend] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """See base class."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._update(key, lambda _: content)

    def get(self, key: str) -> bytes:
        """See base class."""
        self.wait([key])
        found = self._at(key).get_state()
        assert found is not None
        return found[0]

    def add(self, key: str, amount: int) -> int:
        """See base class."""
        return int(self._update(key, lambda old: str(int(old or 0) + amount).encode()))

    def check(self, keys: Sequence[str]) -> bool:
        """See base class."""
        return all(self._at(key).get_state() is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = _TIMEOUT) -> None:
        """See base class."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the keys {', '.join(keys)} were not set within {timeout}")
            time.sleep(_POLL_SECONDS)

    def _update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        found = self._at(key).get_state()
        while True:
            new = change(found[0] if found else None)
            written = self._at(key).set_state(new, found[1] if found else None)
            if written is not None and written[2]:
                return new
            found = written[:2] if written is not None else None

    def _at(self, key: str) -> EtcdBackend:
        if key not in self._keys:
            self._keys[key] = EtcdBackend(self._session, f"{self._prefix}/{key}", self._ttl)
        return self._keys[key]
