"""Looks at etcd before any worker starts, and tells the things apart that can be wrong with it."""

from __future__ import annotations

import http.client
from base64 import b64encode

import requests

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ClusterError, ConfigError
from elastic_harness.rendezvous.endpoints import endpoints, spelt, unreachable, uses_tls
from elastic_harness.rendezvous.etcd_session import EtcdSession, LoginRefusedError, message_of

# What TLS says of an answer in plain text, or of none.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")


def check_v3(session: EtcdSession, config: RendezvousConfig, prefix: str) -> None:
    """Require that the v3 API answers and lets this user in.

    Args:
        session: to the endpoints.
        config: that is named in errors.
        prefix: of the keys that will be read and written.

    Raises:
        ConfigError: no v3 gateway, a certificate or a login is refused.
        ClusterError: no endpoint answers.
    """
    key = {"key": b64encode(prefix.encode()).decode(), "range_end": b64encode(_after(prefix).encode()).decode()}
    response = _answer(session, config, "POST", "/v3/kv/range", {**key, "limit": 1})
    if response.status_code == requests.codes.not_found:
        raise ConfigError(
            f"rendezvous.endpoint={spelt(config)} must serve the v3 API over HTTP, and its gateway is off: start etcd "
            "with --enable-grpc-gateway=true, or use rendezvous=etcd_v2."
        )
    _require_permission(response, config)


def check_v2(session: EtcdSession, config: RendezvousConfig) -> None:
    """Require that the v2 API answers.

    Args:
        session: to the endpoints, without a login, since that of v2 is another one.
        config: that is named in errors.

    Raises:
        ConfigError: the v2 API is off or gone, a certificate is refused.
        ClusterError: no endpoint answers.
    """
    response = _answer(session, config, "GET", "/v2/keys/", None)
    # A server without the v2 API answers in plain text; with it, errors are JSON.
    if response.status_code == requests.codes.not_found and "json" not in response.headers.get("content-type", ""):
        raise ConfigError(
            f"rendezvous.endpoint={spelt(config)} must serve the v2 API, which is off there: start etcd 3.4 or 3.5 "
            "with --enable-v2=true (3.6 has no v2 API), or use rendezvous=etcd."
        )


def _answer(
    session: EtcdSession, config: RendezvousConfig, method: str, path: str, content: object
) -> requests.Response:
    try:
        return session.request(method, path, json=content)
    except LoginRefusedError as error:
        raise _login(config, str(error)) from error
    except requests.exceptions.SSLError as error:
        raise _certificate(config, error) from error
    except requests.RequestException as error:
        reason = _innermost(error)
        if isinstance(reason, http.client.RemoteDisconnected) and not uses_tls(config):
            raise _tls_is_needed(config) from error
        raise unreachable(config, reason) from error


def _require_permission(response: requests.Response, config: RendezvousConfig) -> None:
    if response.ok:
        return
    message = message_of(response.text)
    if "permission denied" in message or "user name is empty" in message:
        raise _login(config, message)
    raise ClusterError(f"rendezvous.endpoint={spelt(config)} must answer requests, and says: {message}.")


def _login(config: RendezvousConfig, message: str) -> ConfigError:
    return ConfigError(
        f"rendezvous.user={config.user or 'null'} must be a user of etcd at {spelt(config)} that may read and write "
        f"(it says: {message}): correct rendezvous.user and rendezvous.password."
    )


def _tls_is_needed(config: RendezvousConfig) -> ConfigError:
    return ConfigError(
        f"rendezvous.endpoint={spelt(config)} must begin with https://, since the other side hangs up on plain HTTP: "
        f"use rendezvous.endpoint=https://{endpoints(config)[0]}, with rendezvous.cacert=FILE."
    )


def _certificate(config: RendezvousConfig, error: Exception) -> ConfigError:
    reason = _innermost(error)
    if any(sign in str(reason) for sign in _NO_TLS):
        return ConfigError(
            f"rendezvous.endpoint={spelt(config)} must speak TLS, and speaks plain HTTP: "
            "leave out https://, rendezvous.cacert and rendezvous.cert."
        )
    return ConfigError(
        f"rendezvous.cacert={config.cacert or 'null'} must be the authority that signed the certificate of "
        f"{spelt(config)}, and rendezvous.cert={config.cert or 'null'} one that it accepts ({reason}): "
        "correct the files."
    )


def _innermost(error: BaseException) -> BaseException:
    """The error of the operating system or of TLS, under those of requests and urllib3."""
    arguments = [argument for argument in error.args if isinstance(argument, BaseException)]
    below = (getattr(error, "reason", None), *arguments, error.__cause__)
    return next((_innermost(each) for each in below if isinstance(each, BaseException)), error)


def _after(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
