"""A network of nodes for tests: a namespace and a cable each, on one bridge, so that a link can be cut for real."""

from __future__ import annotations

import itertools
import os
import subprocess

_AS_NODE = 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && exec "$@"'
_COUNT = itertools.count()


class Network:
    """Nodes with an address each; needs root and iproute2.

    Attributes:
        host: the address at which the nodes reach this process.
    """

    def __init__(self) -> None:
        number = (os.getpid() + next(_COUNT)) % 250
        self._prefix, self._subnet = f"eh{number}", f"10.213.{number}"
        self._nodes: list[str] = []
        self.host = f"{self._subnet}.1"
        _ip("link", "add", self._prefix, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self._prefix)
        _ip("link", "set", self._prefix, "up")

    def add(self, name: str) -> str:
        """Add a node; its address."""
        number = len(self._nodes)
        self._nodes.append(name)
        space, address = self._space(name), f"{self._subnet}.{number + 2}"
        _ip("netns", "add", space)
        _ip("link", "add", self._cable(name), "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", self._cable(name), "master", self._prefix, "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        return address

    def command(self, name: str) -> list[str]:
        """What runs a program on a node: to be put before it."""
        return ["ip", "netns", "exec", self._space(name)]

    def cut(self, name: str) -> None:
        """Take a node off the network: nothing comes or goes, and nothing is closed."""
        _ip("link", "set", self._cable(name), "down")

    def heal(self, name: str) -> None:
        """Put it back."""
        _ip("link", "set", self._cable(name), "up")

    def close(self) -> None:
        """Remove everything."""
        for name in self._nodes:
            _ip("netns", "del", self._space(name))
        _ip("link", "del", self._prefix)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._prefix}-{name}"


def as_node(name: str) -> list[str]:
    """What runs a program as if on a machine of its own, with its own name and shared memory: to be put before it."""
    return ["unshare", "--uts", "--mount", "sh", "-c", _AS_NODE, name]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
