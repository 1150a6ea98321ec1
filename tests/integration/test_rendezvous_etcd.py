"""A real etcd behind the rendezvous: what is written there, and what is said when it cannot be used."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_harness.config import RendezvousConfig
from elastic_harness.errors import ClusterError, ConfigError
from elastic_harness.rendezvous.backends import connect
from elastic_harness.rendezvous.etcd import EtcdBackend
from elastic_harness.rendezvous.etcd_session import EtcdSession, session_of
from tests.etcd import Etcd, free_ports

pytestmark = pytest.mark.long

StartEtcd = Callable[..., Etcd]


@pytest.fixture(scope="module")
def start_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEtcd]:
    """Starts an etcd; stops it after the tests of this file."""
    servers: list[Etcd] = []

    def start(*options: str, **arguments: Any) -> Etcd:
        folder = arguments.pop("folder", None) or tmp_path_factory.mktemp("etcd")
        servers.append(Etcd(folder, *options, **arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def plain(start_etcd: StartEtcd) -> Etcd:
    """An etcd as it is installed: the v3 API, no TLS, no users."""
    server = start_etcd()
    server.wait()
    return server


@pytest.fixture(scope="module")
def old(start_etcd: StartEtcd) -> Etcd:
    """An etcd with the v2 API, and no gateway to the v3 API."""
    server = start_etcd("--enable-v2=true", "--enable-grpc-gateway=false")
    server.wait()
    return server


def config(server: Etcd, backend: str = "etcd", **changes: Any) -> RendezvousConfig:
    return RendezvousConfig(**{"backend": backend, "endpoint": server.endpoint, "read_timeout": 5.0, **changes})


def refused(cfg: RendezvousConfig, error: type[Exception] = ConfigError) -> str:
    with pytest.raises(error) as raised:
        connect(cfg, "refused", lambda: None)
    (line,) = str(raised.value).splitlines()
    return line


# -- compare and set -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["etcd", "etcd_v2"])
def test_backend_when_two_write_then_one_wins_and_the_other_sees_what_is_there(
    plain: Etcd, old: Etcd, backend: str
) -> None:
    cfg = config(plain if backend == "etcd" else old, backend)
    one, two = (connect(cfg, "run1", lambda: None) for _ in range(2))
    other_run = connect(cfg, "run2", lambda: None)
    assert one.get_state() is None
    created = one.set_state(b"first")
    assert created is not None
    assert (created[0], created[2]) == (b"first", True)
    assert two.set_state(b"late") == (b"first", created[1], False)
    changed = two.set_state(b"second", created[1])
    assert changed is not None
    assert changed[2]
    assert one.set_state(b"stale", created[1]) == (b"second", changed[1], False)
    assert one.get_state() == (b"second", changed[1])
    assert other_run.get_state() is None


def test_state_when_its_writers_are_gone_then_it_expires_r02(plain: Etcd) -> None:
    backend = EtcdBackend(session_of(config(plain)), "/elastic-harness/expiring", ttl=1)
    backend.set_state(b"left behind")
    assert backend.get_state() is not None
    deadline = time.monotonic() + 30
    while backend.get_state() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert backend.set_state(b"again") is not None  # its lease was gone as well


# -- what is said when it cannot be used ---------------------------------------------------------------------------


def test_etcd_when_it_is_not_there_then_that_is_said_r03() -> None:
    port = free_ports(1)[0]
    for backend in ("etcd", "etcd_v2"):
        cfg = RendezvousConfig(backend=backend, endpoint=f"127.0.0.1:{port}")
        line = refused(cfg, ClusterError)
        assert line.startswith(f"rendezvous.endpoint=127.0.0.1:{port} must be reachable from this node (")
        assert "Connection refused" in line
    line = refused(RendezvousConfig(backend="etcd", endpoint="no-such-host.invalid"), ClusterError)
    assert line.startswith("rendezvous.endpoint=no-such-host.invalid must be reachable")


def test_etcd_when_only_the_other_api_is_served_then_that_is_said_r03(plain: Etcd, old: Etcd) -> None:
    line = refused(config(plain, "etcd_v2"))
    assert line.startswith(f"rendezvous.endpoint={plain.endpoint} must serve the v2 API, which is off there")
    assert "--enable-v2=true" in line
    assert "rendezvous=etcd." in line
    line = refused(config(old, "etcd"))
    assert line.startswith(
        f"rendezvous.endpoint={old.endpoint} must serve the v3 API over HTTP, and its gateway is off"
    )
    assert "rendezvous=etcd_v2" in line


def test_etcd_when_it_asks_for_a_login_then_only_the_right_one_is_let_in(start_etcd: StartEtcd) -> None:
    server = start_etcd()
    server.wait()
    server.require_login("right")
    assert refused(config(server)).startswith("rendezvous.user=null must be a user of etcd")
    assert "invalid user ID or password" in refused(config(server, user="root", password="wrong"))
    assert "permission denied" in refused(config(server, user="guest", password="right"))
    session = session_of(config(server, user="root", password="right"))
    backend = EtcdBackend(session, "/elastic-harness/login", ttl=60)
    written = backend.set_state(b"one")
    session._token = "expired"
    assert written is not None
    assert backend.set_state(b"two", written[1]) == (b"two", written[1] + 1, True)


def test_etcd_when_no_login_is_asked_for_then_a_user_does_no_harm(plain: Etcd) -> None:
    assert connect(config(plain, user="root", password="any"), "user", lambda: None).get_state() is None


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, server and client certificates, and one of another authority."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other"):
        new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={authority}")
        openssl(*new, "-keyout", f"{authority}.key", "-out", f"{authority}.pem")
    (folder / "names.txt").write_text("subjectAltName=IP:127.0.0.1\n")
    for owner in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={owner}", "-keyout", f"{owner}.key", "-out", "r")
        sign = ("x509", "-req", "-days", "2", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-in", "r", "-extfile", "names.txt", "-out", f"{owner}.pem")
    return folder


def test_etcd_when_it_speaks_tls_then_certificates_are_checked_on_both_sides(
    start_etcd: StartEtcd, plain: Etcd, certificates: Path
) -> None:
    files = {name: str(certificates / name) for name in ("ca.pem", "other.pem", "client.pem", "client.key")}
    keys = ("--cert-file", str(certificates / "server.pem"), "--key-file", str(certificates / "server.key"))
    server = start_etcd(*keys, "--client-cert-auth", "--trusted-ca-file", files["ca.pem"], scheme="https")
    server.wait(verify=files["ca.pem"], cert=(files["client.pem"], files["client.key"]))
    mine = {"cert": files["client.pem"], "key": files["client.key"]}
    good = connect(config(server, cacert=files["ca.pem"], **mine), "tls", lambda: None)
    assert good.set_state(b"safe") is not None
    line = refused(config(server, cacert=files["other.pem"], **mine))
    assert line.startswith(f"rendezvous.cacert={files['other.pem']} must be the authority")
    assert "certificate verify failed" in line
    assert "rendezvous.cert=null" in refused(config(server, cacert=files["ca.pem"]))
    assert "must begin with https://" in refused(config(server))
    assert "speaks plain HTTP" in refused(config(plain, endpoint=f"https://{plain.endpoint}"))


# -- several endpoints ---------------------------------------------------------------------------------------------


def test_session_when_an_endpoint_is_dead_then_the_next_one_is_used_and_kept(plain: Etcd) -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    session = EtcdSession([dead, plain.url])
    assert session.get(f"{dead}/version").ok
    assert session.urls == [plain.url, dead]


def test_cluster_when_a_member_is_killed_then_the_others_serve(start_etcd: StartEtcd, tmp_path: Path) -> None:
    ports = free_ports(6)
    names = ("one", "two", "three")
    cluster = ",".join(f"{name}=http://127.0.0.1:{ports[2 * i + 1]}" for i, name in enumerate(names))
    members = [
        start_etcd(folder=tmp_path, name=name, ports=(ports[2 * i], ports[2 * i + 1]), cluster=cluster)
        for i, name in enumerate(names)
    ]
    for member in members:
        member.wait()
    cfg = config(members[0], endpoint=[member.endpoint for member in members])
    backend = connect(cfg, "run", lambda: None)
    written = backend.set_state(b"one")
    assert written is not None
    members[0].stop()
    after = backend.set_state(b"two", written[1])
    while after is not None and not after[2]:  # an election may be under way
        after = backend.set_state(b"two", after[1])
    assert backend.get_state() == (b"two", after[1] if after else None)
