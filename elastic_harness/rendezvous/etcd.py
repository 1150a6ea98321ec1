"""The rendezvous state in etcd v3, through its HTTP gateway.

etcd3gw speaks the gateway's JSON. It knows one host and no login, so both are in the session underneath it.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import urlsplit

import requests
from etcd3gw import Etcd3Client, Lease
from etcd3gw.exceptions import Etcd3Exception
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from elastic_harness.rendezvous.etcd_session import EtcdSession, message_of


class EtcdBackend(RendezvousBackend):
    """Holds a state under one key of etcd; compare-and-set is a transaction on the key's ``mod_revision``.

    The key hangs on a lease of the node that wrote it last, so it expires when all of them are gone.

    Args:
        session: to send requests with.
        key: the key in etcd.
        ttl: seconds that the state outlives its last writer.
    """

    def __init__(self, session: EtcdSession, key: str, ttl: int) -> None:
        first = urlsplit(session.urls[0])
        self._client = Etcd3Client(str(first.hostname), first.port or 0, first.scheme, session=session)
        self._key = b64encode(key.encode()).decode()
        self._ttl = ttl
        self._lease: Lease | None = None
        self._renewed = 0.0

    @property
    def name(self) -> str:
        """See base class."""
        return "etcd-v3"

    def get_state(self) -> tuple[bytes, Token] | None:
        """See base class."""
        try:
            answer = self._client.post(self._client.get_url("/kv/range"), json={"key": self._key})
        except (Etcd3Exception, requests.RequestException, ValueError) as error:
            raise _translated(error) from error
        return _content(answer)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See base class."""
        try:
            answer = self._transaction(state, token)
        except (Etcd3Exception, requests.RequestException, ValueError) as error:
            self._lease = None  # it may have expired; a new one costs little
            raise _translated(error) from error
        if answer.get("succeeded"):
            return state, int(answer["header"]["revision"]), True
        existing = _content(answer["responses"][0]["response_range"])
        return None if existing is None else (*existing, False)

    def _transaction(self, state: bytes, token: Token | None) -> dict[str, Any]:
        unchanged = {"target": "MOD", "mod_revision": token} if token else {"target": "CREATE", "create_revision": 0}
        put = {"key": self._key, "value": b64encode(state).decode(), "lease": self._lease_id()}
        answer: dict[str, Any] = self._client.transaction(  # type: ignore[assignment]
            {
                "compare": [{"key": self._key, "result": "EQUAL", **unchanged}],
                "success": [{"request_put": put}],
                "failure": [{"request_range": {"key": self._key}}],
            }
        )
        return answer

    def _lease_id(self) -> int:
        now = time.monotonic()
        if self._lease is not None and now - self._renewed > self._ttl / 3:
            self._lease = self._lease if self._lease.refresh() > 0 else None
            self._renewed = now
        if self._lease is None:
            self._lease = self._client.lease(self._ttl)
            self._renewed = now
        return self._lease.id


def _content(answer: dict[str, Any]) -> tuple[bytes, Token] | None:
    if not answer.get("kvs"):
        return None
    (entry,) = answer["kvs"]
    return b64decode(entry["value"]), int(entry["mod_revision"])


def _translated(error: Exception) -> RendezvousConnectionError:
    return RendezvousConnectionError(message_of(getattr(error, "detail_text", None) or str(error)))
