"""The backends behind torch's ``RendezvousBackend``, and what is said when one cannot be used."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ConfigError
from elastic_harness.rendezvous.endpoints import Endpoint, answers, endpoints, is_local, spelt, unreachable, uses_tls

log = logging.getLogger(__name__)

PREFIX = "/elastic-harness"
"""Where all keys are in etcd."""

TTL_SECONDS = 600
"""How long a state in etcd outlives the last node that wrote it."""

_NO_STORE = "something listens there that is no store of torch; if it is an etcd: rendezvous=etcd"
_RETRY_SECONDS = 0.1
_CONNECT_SECONDS = 1.0


def connect(config: RendezvousConfig, run_id: str, on_wait: Callable[[], None]) -> RendezvousBackend:
    """The backend of a configuration, checked to work.

    Args:
        config: of the rendezvous.
        run_id: the run; two runs share nothing.
        on_wait: called again and again while the store's host is waited for; may raise to give up.

    Raises:
        ConfigError: the endpoint is not what it should be, or a package is missing.
        ClusterError: the endpoint cannot be reached.
    """
    match config.backend:
        case "etcd":
            return _etcd(config, run_id)
        case "etcd_v2":
            return _etcd_v2(config, run_id)
        case _:
            return _c10d(config, run_id, on_wait)


class StoreBackend(C10dRendezvousBackend):
    """The state in a store that one of the nodes hosts: lost for good when that node is.

    Args:
        store: of torch.
        run_id: the run.
        hosts: this node hosts it.
    """

    def __init__(self, store: TCPStore, run_id: str, hosts: bool) -> None:
        super().__init__(store, run_id)
        self.hosts = hosts


# -- c10d ----------------------------------------------------------------------------------------------------------


def _c10d(config: RendezvousConfig, run_id: str, on_wait: Callable[[], None]) -> RendezvousBackend:
    found = endpoints(config)
    endpoint = found[0] if found else Endpoint("127.0.0.1", 0)
    deadline = time.monotonic() + config.join_timeout
    local = is_local(endpoint.host)
    while True:
        # The node that the endpoint names hosts the store, unless another agent there was faster.
        timeout = timedelta(seconds=max(config.read_timeout, _CONNECT_SECONDS))
        hosts = local and not answers(endpoint.host, endpoint.port)
        try:
            if hosts or answers(endpoint.host, endpoint.port):
                store = _store(endpoint, hosts, timeout, deadline, on_wait)
                return StoreBackend(store, run_id, hosts)
        except (DistError, RendezvousConnectionError) as error:
            log.info("the store at %s: %s", endpoint, error)
        if time.monotonic() > deadline:
            there = answers(endpoint.host, endpoint.port)
            raise unreachable(config, TimeoutError(_NO_STORE if there else f"no answer for {config.join_timeout:g} s"))
        on_wait()
        time.sleep(_RETRY_SECONDS)


def _store(
    endpoint: Endpoint, hosts: bool, timeout: timedelta, deadline: float, on_wait: Callable[[], None]
) -> TCPStore:
    """A store, made in a thread: its handshake with something else that listens there knows no timeout.

    Raises:
        DistError: it cannot be made.
        RendezvousConnectionError: it was not made in time.
    """
    made: list[TCPStore | DistError] = []

    def make() -> None:
        try:
            made.append(TCPStore(endpoint.host, endpoint.port, None, hosts, timeout, wait_for_workers=False))
        except DistError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="c10d-store", daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < deadline:
        on_wait()
        thread.join(_RETRY_SECONDS)
    if not made:
        raise RendezvousConnectionError(_NO_STORE)
    if isinstance(made[0], DistError):
        raise made[0]
    return made[0]


# -- etcd ----------------------------------------------------------------------------------------------------------


def _etcd(config: RendezvousConfig, run_id: str) -> RendezvousBackend:
    _package("etcd3gw", "etcd3gw", config)
    from elastic_harness.rendezvous.etcd import EtcdBackend
    from elastic_harness.rendezvous.etcd_check import check_v3
    from elastic_harness.rendezvous.etcd_session import session_of

    session = session_of(config)
    check_v3(session, config, PREFIX)
    return EtcdBackend(session, f"{PREFIX}/{run_id}", TTL_SECONDS)


def _etcd_v2(config: RendezvousConfig, run_id: str) -> RendezvousBackend:
    etcd = _package("etcd", "python-etcd", config)
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend

    from elastic_harness.rendezvous.etcd_check import check_v2
    from elastic_harness.rendezvous.etcd_session import session_of

    check_v2(session_of(replace(config, user=None)), config)
    try:
        client = etcd.Client(
            host=tuple((each.host, each.port) for each in endpoints(config)),
            read_timeout=config.read_timeout,
            protocol="https" if uses_tls(config) else "http",
            cert=(config.cert, config.key) if config.cert else None,
            ca_cert=config.cacert,
            username=config.user,
            password=config.password,
            allow_reconnect=True,
        )
        backend = EtcdRendezvousBackend(client, run_id, key_prefix=PREFIX, ttl=TTL_SECONDS)
        backend.get_state()
    except etcd.EtcdInsufficientPermissions as error:
        raise _refused(config, error) from error
    except (etcd.EtcdException, RendezvousConnectionError) as error:
        raise unreachable(config, error.__cause__ or error) from error
    return backend


def _refused(config: RendezvousConfig, error: Exception) -> ConfigError:
    return ConfigError(
        f"rendezvous.user={config.user} must be a user of etcd at {spelt(config)} that may read and write ({error}): "
        "correct rendezvous.user and rendezvous.password."
    )


def _package(module: str, package: str, config: RendezvousConfig) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        state = "is not installed" if missing else f"does not import ({error})"
        raise ConfigError(
            f"rendezvous.backend={config.backend} needs the package {package}, which {state}: "
            f"run `pip install --force-reinstall {package}`, or use rendezvous=c10d, which needs no package."
        ) from error
