"""What a node sees of the rendezvous: where it stands, its round, and why that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from elastic_harness.rendezvous.state import Node


class Phase(Enum):
    """Where a node stands."""

    OUT = "out"
    SETTLING = "settling"
    JOINING = "joining"
    WORKING = "working"


class Kind(Enum):
    """What can end a round for a node."""

    JOIN = "join"
    """A node waits, and there is room for it."""
    LEAVE = "leave"
    """A node left politely."""
    LOST = "lost"
    """A node gives no sign of life."""
    REOPENED = "reopened"
    """Another node opened the next round."""
    FENCED = "fenced"
    """This node is out of the current round, or cannot know: it must stop its workers at once."""
    CLOSED = "closed"
    """The run has ended; what still works here is to stop."""


@dataclass(frozen=True)
class Change:
    """Why the round a node works in is no longer current.

    Args:
        kind: see ``Kind``.
        text: one phrase for the log.
    """

    kind: Kind
    text: str


@dataclass(frozen=True)
class Round:
    """One node's place in a complete round.

    Args:
        launch: number of the launch.
        generation: number of the round.
        rank: this node's rank among the nodes.
        members: all nodes of the round by id, in order of rank.
        store: host and port of the round's store; None until rank 0 has published it.
        settled: what the first node of the launch has settled for all.
        after_failure: a failure has led to it, on whatever node.
    """

    launch: int
    generation: int
    rank: int
    members: Mapping[str, Node]
    store: tuple[str, int] | None
    settled: Mapping[str, Any]
    after_failure: bool = False

    @property
    def first_worker(self) -> int:
        """The rank, among all workers, of the first one of this node."""
        return sum(self._workers[: self.rank])

    @property
    def world_size(self) -> int:
        """Number of workers of all nodes."""
        return sum(self._workers)

    @property
    def _workers(self) -> list[int]:
        return [node.workers for node in self.members.values()]
