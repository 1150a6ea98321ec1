"""HTTP to etcd: several endpoints, one login, TLS."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests

from elastic_harness.config import RendezvousConfig
from elastic_harness.rendezvous.endpoints import endpoints, uses_tls

_CONNECT_SECONDS = 1.0
_NO_LOGIN_NEEDED = "authentication is not enabled"
_TRY_ANOTHER = (requests.codes.unavailable, requests.codes.gateway_timeout, requests.codes.bad_gateway)


class LoginRefusedError(requests.RequestException):
    """etcd does not accept the user or the password."""


class EtcdSession(requests.Session):
    """Sends each request to the first of several endpoints that answers, logged in.

    It stays with an endpoint until that fails. The token of a login expires (by default five minutes after its last
    use, and with the member that issued it); then it logs in again.

    Args:
        urls: such as ``https://10.0.0.1:2379``.
        user: name to log in with; None: no login.
        password: of the user.
        timeout: seconds that an answer may take.
        cacert: file with the certificate of the authority that signed the endpoints'; None: those of the system.
        cert: files with this client's certificate and its key.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 1.0,
        cacert: str | None = None,
        cert: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.trust_env = False  # a proxy for the web is none for the cluster
        self.verify = cacert if cacert is not None else True
        self.cert = cert
        self.urls = list(urls)
        self._user, self._password, self._timeout = user, password, timeout
        self._token: str | None = None

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        """Send a request; scheme, host and port of ``url`` are replaced.

        Raises:
            LoginRefusedError: the login was refused.
            requests.RequestException: no endpoint answered; the error is that of the last one.
        """
        if self._user is not None and self._token is None:
            self._log_in()
        response = self._send(method, url, **kwargs)
        if self._user is not None and response.status_code == requests.codes.unauthorized:
            self._log_in()
            response = self._send(method, url, **kwargs)
        return response

    def _send(self, method: str, url: str, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = (min(_CONNECT_SECONDS, self._timeout), self._timeout)
        headers = {**(kwargs.pop("headers", None) or {}), **({"Authorization": self._token} if self._token else {})}
        path = urlunsplit(("", "", *urlsplit(url)[2:]))

        def send() -> requests.Response:
            return super(EtcdSession, self).request(method, self.urls[0] + path, headers=headers, **kwargs)

        for _ in self.urls[1:]:
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                response = send()
                if response.status_code not in _TRY_ANOTHER:
                    return response
            self.urls.append(self.urls.pop(0))
        return send()

    def _log_in(self) -> None:
        self._token = None
        content = {"name": self._user, "password": self._password}
        response = self._send("POST", "/v3/auth/authenticate", json=content)
        if response.ok:
            self._token = response.json()["token"]
        elif _NO_LOGIN_NEEDED not in response.text:
            raise LoginRefusedError(message_of(response.text))


def session_of(config: RendezvousConfig) -> EtcdSession:
    """A session for a configuration's endpoints. Nothing is sent yet."""
    scheme = "https" if uses_tls(config) else "http"
    return EtcdSession(
        [f"{scheme}://{endpoint}" for endpoint in endpoints(config)],
        user=config.user,
        password=config.password,
        timeout=config.read_timeout,
        cacert=config.cacert,
        cert=(config.cert, config.key) if config.cert and config.key else None,
    )


def message_of(text: str) -> str:
    """etcd's own words, out of the JSON around them."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()
