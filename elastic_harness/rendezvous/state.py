"""What the nodes of a run know together: one JSON value, changed only by compare-and-set, and its transitions.

    open round  --close_round-->  complete round  --open_round-->  open round ...
    (nodes get ready)             (ranks, then the store of rank 0)

Everything here is pure: a transition takes a state and returns another one. Which transition a node tries, and when, is
decided in ``member.py``. No clock is kept here: those of two nodes cannot be compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

FINISHED = "finished"

FULL_PACE_NODES = 16
"""With more nodes than these, each gives its signs of life less often, in proportion, since all share one value."""


@dataclass(frozen=True)
class Rules:
    """What all nodes of a run go by.

    Args:
        min_nodes: smallest number of nodes a round closes with.
        max_nodes: largest; more of them wait as spares.
        last_call: seconds the first round waits for more than ``min_nodes``.
        interval: seconds between two signs of life of a node.
        attempts: signs of life that may be missed before a node is taken for dead.
        fixed: the nodes of the first round are the only ones: losing one ends the run.
        private: nobody else can reach the backend, so nobody can expel this node.
    """

    min_nodes: int
    max_nodes: int
    last_call: float
    interval: float
    attempts: int
    fixed: bool = False
    private: bool = False

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which the others take a node for dead."""
        return self.interval * self.attempts

    @property
    def fence(self) -> float:
        """Seconds without contact after which a node takes itself for expelled: earlier than the others do."""
        return math.inf if self.private else self.interval * (self.attempts - 1)


@dataclass(frozen=True)
class Node:
    """One node, as the others see it.

    Args:
        name: name of its machine.
        address: where the workers of other nodes reach it.
        workers: number of its workers.
        newest: the newest generation that its run folder knows of; -1: none.
        beat: grows with each of its writes; its sign of life.
        ready: it waits to be in the next round.
        rank: in the newest round that closed; None: it was not in it.
        launch: the newest launch it was in a round of.
        done: its workers have finished.
    """

    name: str
    address: str
    workers: int = 1
    newest: int = -1
    beat: int = 0
    ready: bool = True
    rank: int | None = None
    launch: int = 0
    done: bool = False


@dataclass(frozen=True)
class State:
    """A launch of the run and its newest round.

    Args:
        launch: how many times the run was started with none of its nodes alive.
        generation: number of the newest round that closed, from 0; it only grows, over launches too.
        complete: that round is the current one; otherwise the next one is open.
        size: nodes in that round; 0 before the first one of the launch.
        store: host and port of its store, once its rank 0 has published it.
        cause: why the next round was opened.
        nodes: every known node by id, in order of arrival.
        machines: names of those that were ever in a round of the launch.
        failures: the failures of the launch, at most one a generation, oldest first.
        charged: how many of them there were when the newest round closed.
        after_failure: one of them came since the round before.
        settled: what the first node of the launch has settled for all of them.
        outcome: ``finished``, or why there is no further round; None while it goes on.
    """

    launch: int = 1
    generation: int = -1
    complete: bool = False
    size: int = 0
    store: tuple[str, int] | None = None
    cause: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()
    charged: int = 0
    after_failure: bool = False
    settled: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None

    @property
    def members(self) -> dict[str, Node]:
        """The nodes of the newest round that are still known, by rank."""
        ranked = [(node.rank, name) for name, node in self.nodes.items() if node.rank is not None]
        return {name: self.nodes[name] for _, name in sorted(ranked)}

    def to_bytes(self) -> bytes:
        """The state as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> State:
        """The state that ``to_bytes`` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            values = json.loads(content)
            nodes = {name: Node(**node) for name, node in values.pop("nodes").items()}
            store = values.pop("store")
            values.update({key: tuple(values[key]) for key in ("machines", "failures")})
            return cls(**values, nodes=nodes, store=(str(store[0]), int(store[1])) if store else None)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state of a rendezvous ({error}): {content[:80]!r}") from error


def with_node(state: State, node_id: str, node: Node) -> State:
    """The state with a node added or replaced."""
    return replace(state, nodes={**state.nodes, node_id: node})


def without_node(state: State, node_id: str) -> State:
    """The state without a node."""
    return replace(state, nodes={name: node for name, node in state.nodes.items() if name != node_id})


def new_launch(state: State, nodes: Mapping[str, Node], settled: Mapping[str, Any]) -> State:
    """The run started anew: nothing is left of the earlier launch but the count of its generations."""
    fresh = {name: replace(node, rank=None, ready=True, done=False) for name, node in nodes.items()}
    return State(launch=state.launch + 1, generation=state.generation, nodes=fresh, settled=settled)


def open_round(state: State, cause: str) -> State:
    """Nodes get ready for the next round; all of the newest one have to stop first."""
    nodes = {name: replace(node, done=False) for name, node in state.nodes.items()}
    return replace(state, complete=False, store=None, cause=cause, nodes=nodes)


def may_close(state: State, dead: Collection[str], rules: Rules, last_call_is_over: bool) -> bool:
    """Whether every known node that lives is ready, and they are enough.

    Args:
        state: with an open round.
        dead: nodes that this observer takes for dead.
        rules: of the run.
        last_call_is_over: nobody else is waited for at the first round.
    """
    alive = [node for name, node in state.nodes.items() if name not in dead]
    if len(alive) < rules.min_nodes or not all(node.ready for node in alive):
        return False
    return state.size > 0 or len(alive) >= rules.max_nodes or last_call_is_over


def close_round(state: State, dead: Collection[str], rules: Rules, settled: Mapping[str, Any]) -> State:
    """Ranks for the nodes that live: who had one keeps its place in the order, newcomers follow by arrival.

    The dead are forgotten, which tells them that they are out. Surplus nodes go on waiting. If nobody is left of those
    that were ever in a round, the run has crashed and is started anew: that is another launch, its round still open.

    Args:
        state: with an open round that may close.
        dead: nodes that this observer takes for dead.
        rules: of the run.
        settled: what a new launch goes by.
    """
    alive = {name: node for name, node in state.nodes.items() if name not in dead}
    order = sorted(alive, key=lambda name: (alive[name].rank is None, alive[name].rank or 0))
    chosen = order[: rules.max_nodes]
    if state.size and all(alive[name].launch != state.launch for name in chosen):
        return new_launch(state, alive, settled)
    nodes = {name: replace(node, rank=None, ready=True, done=False) for name, node in alive.items()}
    for rank, name in enumerate(chosen):
        nodes[name] = replace(nodes[name], rank=rank, ready=False, launch=state.launch)
    machines = dict.fromkeys([*state.machines, *(alive[name].name for name in chosen)])
    return replace(
        state,
        generation=1 + max(state.generation, *(alive[name].newest for name in chosen)),
        complete=True,
        size=len(chosen),
        store=None,
        cause="",
        charged=len(state.failures),
        after_failure=len(state.failures) > state.charged,
        nodes=nodes,
        machines=tuple(machines),
    )


def charge(state: State, generation: int, failure: Mapping[str, Any]) -> State:
    """The state with a failure of a generation counted; that of a generation is counted once, whoever saw it."""
    if any(known["generation"] == generation for known in state.failures):
        return state
    return replace(state, failures=(*state.failures, {"generation": generation, **failure}))
