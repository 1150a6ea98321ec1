"""A real etcd for tests: on ports of the system's choice, in a folder of its own, stopped by pid."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import requests

EXECUTABLE = shutil.which("etcd")
_SECONDS = 30.0


class Etcd:
    """One etcd, or a member of a cluster.

    Args:
        folder: for its data and its log.
        options: more of etcd's.
        scheme: of the client port.
        name: of the member.
        ports: client and peer port; chosen if not given.
        cluster: ``name=peer url`` of every member; this one alone if not given.
        host: address for clients.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        scheme: str = "http",
        name: str = "one",
        ports: tuple[int, int] | None = None,
        cluster: str | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        assert EXECUTABLE is not None, "install etcd, for example with `apt-get install etcd-server`"
        self.client, peer = ports or free_ports()
        self.endpoint = f"{host}:{self.client}"
        self.url = f"{scheme}://{self.endpoint}"
        peer_url = f"http://127.0.0.1:{peer}"
        self._log = folder / f"{name}.log"
        self._command = [
            *(EXECUTABLE, "--name", name, "--data-dir", str(folder / name), "--log-level", "error"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", cluster or f"{name}={peer_url}", *options),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, with the data it has."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self, path: str = "/health", **options: object) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + _SECONDS
        while True:
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()
            try:
                if requests.get(self.url + path, timeout=1, **options).ok:  # type: ignore[arg-type]
                    return
            except requests.RequestException:
                assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def require_login(self, password: str) -> None:
        """Let nobody in without a password: users ``root``, and ``guest``, who may do nothing."""
        self._post("user/add", name="root", password=password)
        self._post("user/add", name="guest", password=password)
        self._post("role/add", name="root")
        self._post("user/grant", user="root", role="root")
        self._post("enable")

    def state(self, key: str) -> dict[str, Any]:
        """The JSON under a key."""
        content = {"key": b64encode(key.encode()).decode()}
        (found,) = requests.post(f"{self.url}/v3/kv/range", json=content, timeout=5).json()["kvs"]
        state: dict[str, Any] = json.loads(b64decode(found["value"]))
        return state

    def _post(self, path: str, **content: str) -> None:
        response = requests.post(f"{self.url}/v3/auth/{path}", json=content, timeout=5)
        assert response.ok, response.text


def free_ports(number: int = 2) -> tuple[int, ...]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports
