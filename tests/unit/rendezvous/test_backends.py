"""What is said when a backend's package or address is not there."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ClusterError, ConfigError
from elastic_harness.rendezvous.backends import connect
from elastic_harness.rendezvous.endpoints import Endpoint, address_of_this_node, endpoints, uses_tls


def refused(config: RendezvousConfig) -> str:
    with pytest.raises(ConfigError) as raised:
        connect(config, "run", lambda: None)
    return str(raised.value)


@pytest.mark.parametrize(
    ("backend", "module", "package"), [("etcd", "etcd3gw", "etcd3gw"), ("etcd_v2", "etcd", "python-etcd")]
)
def test_connect_when_the_package_is_missing_then_it_is_named_r04(
    monkeypatch: Any, backend: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = refused(RendezvousConfig(backend=backend, endpoint="127.0.0.1:1"))
    assert message.startswith(f"rendezvous.backend={backend} needs the package {package}, which is not installed: ")
    assert "\n" not in message


def test_connect_when_the_package_is_broken_then_the_reason_is_given_r04(monkeypatch: Any, tmp_path: Any) -> None:
    (tmp_path / "etcd3gw.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "etcd3gw", raising=False)
    message = refused(RendezvousConfig(backend="etcd", endpoint="127.0.0.1:1"))
    assert "needs the package etcd3gw, which does not import (No module named 'no_such_dependency')" in message


def test_connect_when_the_stores_host_does_not_come_then_it_gives_up_in_time() -> None:
    config = RendezvousConfig(endpoint="192.0.2.1:29400", join_timeout=0.1)
    waits: list[None] = []
    with pytest.raises(ClusterError, match=r"rendezvous.endpoint=192.0.2.1:29400 must be reachable"):
        connect(config, "run", lambda: waits.append(None))


def test_connect_when_the_wait_is_interrupted_then_the_interruption_comes_through() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connect(RendezvousConfig(endpoint="192.0.2.1:29400"), "run", interrupt)


def test_connect_when_nothing_is_configured_then_this_node_hosts_a_store_for_itself() -> None:
    one, two = (connect(RendezvousConfig(), "run", lambda: None) for _ in range(2))
    one.set_state(b"mine")
    assert two.get_state() is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.0.0.1:80", [Endpoint("10.0.0.1", 80)]),
        ("https://etcd", [Endpoint("etcd", 2379)]),
        (["a:1", "http://b:2/"], [Endpoint("a", 1), Endpoint("b", 2)]),
        ("a:1, b:2", [Endpoint("a", 1), Endpoint("b", 2)]),
        ("[::1]:5", [Endpoint("::1", 5)]),
        ("[::1]", [Endpoint("::1", 2379)]),
    ],
)
def test_endpoints_when_written_in_any_usual_way_then_understood(given: Any, expected: list[Endpoint]) -> None:
    assert endpoints(RendezvousConfig(backend="etcd", endpoint=given)) == expected


@pytest.mark.parametrize("given", ["a:port", ":1", "a:0", "a:70000", "a:1,,"])
def test_endpoints_when_one_is_wrong_then_the_form_is_named(given: str) -> None:
    with pytest.raises(ConfigError, match=r"rendezvous.endpoint=.* must be HOST:PORT"):
        endpoints(RendezvousConfig(backend="etcd", endpoint=given))


def test_tls_when_an_endpoint_or_a_certificate_says_so_then_it_is_used() -> None:
    assert not uses_tls(RendezvousConfig(endpoint="a:1"))
    assert uses_tls(RendezvousConfig(endpoint=["a:1", "https://b:1"]))
    assert uses_tls(RendezvousConfig(endpoint="a:1", cacert="ca.pem"))


def test_address_when_none_is_given_then_it_is_the_one_that_leads_to_the_endpoint_r11(monkeypatch: Any) -> None:
    def no_lookup(*_: Any) -> str:
        raise OSError("the machine's own name must not be looked up")

    monkeypatch.setattr(socket, "gethostname", no_lookup)
    monkeypatch.setattr(socket, "getfqdn", no_lookup)
    assert address_of_this_node(RendezvousConfig(backend="etcd", endpoint="127.0.0.1:2379")) == "127.0.0.1"
    assert address_of_this_node(RendezvousConfig()) == "127.0.0.1"


def test_address_when_it_is_not_of_this_machine_then_it_is_refused_r11() -> None:
    with pytest.raises(ConfigError, match=r"rendezvous.local_addr=192.0.2.1 must be an address of this machine"):
        address_of_this_node(RendezvousConfig(local_addr="192.0.2.1"))
