"""Where the rendezvous endpoint is, and at which address the others reach this node."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ClusterError, ConfigError

_DEFAULT_PORTS = {"c10d": 29400, "static": 29400, "etcd": 2379, "etcd_v2": 2379}

_CONNECT_SECONDS = 1.0


@dataclass(frozen=True)
class Endpoint:
    """One host and port of ``rendezvous.endpoint``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoints(config: RendezvousConfig) -> list[Endpoint]:
    """The endpoints in the order they are tried.

    Raises:
        ConfigError: one of them is not ``host:port``.
    """
    given = config.endpoint or []
    texts = given if isinstance(given, list) else given.split(",")
    return [_parsed(text.strip(), config) for text in texts]


def uses_tls(config: RendezvousConfig) -> bool:
    """Whether etcd is spoken to over https: an endpoint says so, or a certificate is given."""
    given = config.endpoint if isinstance(config.endpoint, list) else [config.endpoint or ""]
    return bool(config.cacert or config.cert) or any(text.strip().startswith("https://") for text in given)


def address_of_this_node(config: RendezvousConfig) -> str:
    """The address that the workers of other nodes reach this one at. The machine's own name is never looked up.

    Raises:
        ConfigError: ``local_addr`` is not an address of this machine.
        ClusterError: the endpoint's name does not resolve.
    """
    if config.local_addr is not None:
        return _require_local(config.local_addr)
    for endpoint in endpoints(config)[:1]:
        try:
            family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing; only chooses the route
                return str(probe.getsockname()[0])
        except OSError as error:
            raise unreachable(config, error) from error
    return "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The network interface that has an address of this machine; gloo would look up the machine's name to find one."""
    if ip_address(address).is_loopback:
        return "lo"
    found = psutil.net_if_addrs().items()
    return next((name for name, has in found if any(each.address == address for each in has)), None)


def unreachable(config: RendezvousConfig, error: BaseException) -> ClusterError:
    """The error for an endpoint that does not answer."""
    reason = getattr(error, "strerror", None) or error
    return ClusterError(
        f"rendezvous.endpoint={spelt(config)} must be reachable from this node ({reason}): start it, correct the "
        "endpoint, or let the network between them through; then the same command may be tried again."
    )


def spelt(config: RendezvousConfig) -> str:
    """The endpoint as it is typed on the command line."""
    given = config.endpoint
    return f"[{','.join(given)}]" if isinstance(given, list) else str(given)


def is_local(host: str) -> bool:
    """Whether a name or address belongs to this machine: only then can it be bound."""
    return _bind_error(host) is None


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there. Asked before torch is, which fills the screen when nobody does."""
    try:
        socket.create_connection((host, port or 1), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _require_local(address: str) -> str:
    error = _bind_error(address)
    if error is not None:
        raise ConfigError(
            f"rendezvous.local_addr={address} must be an address of this machine ({error.strerror or error}): give one "
            "that the other nodes reach it at, or leave it out for the one that leads to rendezvous.endpoint."
        ) from error
    return address


def _bind_error(host: str) -> OSError | None:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error
    return None


def _parsed(text: str, config: RendezvousConfig) -> Endpoint:
    bare = text.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":") if not bare.endswith("]") else (bare, "", "")
    if not colon:
        host, port = bare, str(_DEFAULT_PORTS[config.backend])
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"rendezvous.endpoint={spelt(config)} must be HOST:PORT, or a list of them for etcd: "
            f"for example rendezvous.endpoint=10.0.0.1:{_DEFAULT_PORTS[config.backend]}."
        )
    return Endpoint(host, int(port))
