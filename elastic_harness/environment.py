"""What Lightning asks of the cluster: the ranks and sizes of a generation."""

from __future__ import annotations

from lightning_fabric.plugins import ClusterEnvironment

from elastic_harness.messages import Assignment


class ElasticEnvironment(ClusterEnvironment):
    """Tells Lightning the ranks of this generation; in the agent's process there is one rank, 0 of 1."""

    def __init__(self) -> None:
        self.assignment: Assignment | None = None

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self.assignment.store_host if self.assignment else "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self.assignment.store_port if self.assignment else 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.assignment.world_size if self.assignment else 1

    def set_world_size(self, size: int) -> None:
        """The size comes from the assignment."""

    def global_rank(self) -> int:
        return self.assignment.rank if self.assignment else 0

    def set_global_rank(self, rank: int) -> None:
        """The rank comes from the assignment."""

    def local_rank(self) -> int:
        return self.assignment.local_rank if self.assignment else 0

    def node_rank(self) -> int:
        return self.assignment.node_rank if self.assignment else 0
