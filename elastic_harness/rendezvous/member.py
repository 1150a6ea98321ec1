"""One node's part in the rendezvous: what it wants, what it sees, and what it writes next. Pure: time is passed in.

    OUT --(settle)--> JOINING --(round complete, store published)--> WORKING --join--> JOINING ...

``step`` is called with each state that was read and returns the state to write, if any. It decides from that state and
from what the node wants alone, so a write whose answer was lost, or that came too late, needs no care: the next state
that is read says what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_harness.rendezvous.liveness import Liveness
from elastic_harness.rendezvous.state import (
    FINISHED,
    Node,
    Rules,
    State,
    charge,
    close_round,
    may_close,
    new_launch,
    open_round,
    with_node,
    without_node,
)
from elastic_harness.rendezvous.view import Change, Kind, Phase, Round


class Member:
    """What one node wants, and what it has seen.

    Args:
        node_id: unique for this process.
        node: what the others are told of it.
        rules: of the run, the same on all nodes.
        settled: what this node settles for all, if it is the first of a launch.
    """

    def __init__(self, node_id: str, node: Node, rules: Rules, settled: Mapping[str, Any]) -> None:
        self.phase = Phase.OUT
        self.state = State()
        self.round: Round | None = None
        self.wrote: float | None = None  # when this node began its newest write that was accepted
        self._id = node_id
        self._node = node
        self._rules = rules
        self._settled = settled
        self._liveness = Liveness(rules.patience, rules.interval)
        self._launch: int | None = None
        self._left = -1  # the newest generation this node is through with
        self._cause = ""
        self._enough_since: float | None = None
        self._hosted: tuple[int, str, int] | None = None
        self._failure: tuple[Round, Mapping[str, Any]] | None = None
        self._outcome: str | None = None
        self._done = False
        self.was_last: bool | None = None  # when it left; None: it has not, or it is not known
        self.came_later = False  # the launch had begun without it

    # -- what the node wants -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take over what the launch goes by, or begin one, without being in a round yet."""
        self.phase = Phase.SETTLING

    def join(self, cause: str) -> None:
        """Be in the next round. This node's workers are stopped.

        Args:
            cause: why the round it was in is over, for the others' logs.
        """
        self.phase = Phase.JOINING
        self._cause = cause
        self._done = False
        self._through()

    def work(self, joined: Round) -> None:
        """The round that was joined is taken up."""
        self.phase, self.round = Phase.WORKING, joined
        self._node = replace(self._node, launch=joined.launch)

    def leave(self) -> None:
        """Be in no further round."""
        self.phase = Phase.OUT
        self._through()

    def _through(self) -> None:
        if self.round is not None:
            self._left = self.round.generation
            self._node = replace(self._node, newest=max(self._node.newest, self._left))
        self.round = None

    def host(self, generation: int, address: str, port: int) -> None:
        """This node has rank 0 and hosts the store of that generation."""
        self._hosted = (generation, address, port)

    def fail(self, failure: Mapping[str, Any]) -> None:
        """A failure of the round it works in is to be counted."""
        if self.round is not None:
            self._failure = (self.round, failure)

    def finish(self) -> None:
        """This node's workers have finished; the run has when those of all members have."""
        self._done = True

    def close(self, outcome: str) -> None:
        """No further round for anybody."""
        self._outcome = outcome

    # -- what it sees --------------------------------------------------------------------------------------------

    @property
    def settled(self) -> Mapping[str, Any] | None:
        """What the first node of the launch that is under way has settled; None if there is none."""
        return self.state.settled if self.state.nodes and self.state.outcome is None else None

    def may_write(self, now: float) -> bool:
        """Whether no other nodes can have gone on with the run in this one's place.

        Args:
            now: this node's monotonic clock, in seconds.
        """
        if self._rules.private:
            return True
        if self.phase is Phase.OUT:
            return self.was_last is True
        living = [name for name in self.state.members if name not in self._dead]  # the first one leads
        return living[:1] == [self._id] and self.wrote is not None and now - self.wrote < self._rules.fence

    @property
    def others_work(self) -> bool:
        """Whether other nodes of the newest round are there, which have what this one has."""
        return any(name != self._id and name not in self._dead for name in self.state.members)

    @property
    def joined(self) -> Round | None:
        """The complete round that a joining node was taken into, its store perhaps still to come."""
        state, me = self.state, self.state.nodes.get(self._id)
        whole = state.complete and len(state.members) == state.size
        if not whole or me is None or me.rank is None or state.generation <= self._left:
            return None
        return Round(
            state.launch, state.generation, me.rank, state.members, state.store, state.settled, state.after_failure
        )

    @property
    def is_spare(self) -> bool:
        """Whether this node waits only because as many as may be in a round are in one."""
        me = self.state.nodes.get(self._id)
        waits = self.phase is Phase.JOINING and me is not None and me.rank is None
        return waits and self.state.complete and len(self.state.members) >= self._rules.max_nodes

    @property
    def told(self) -> str | None:
        """The outcome of the run, for a node that was part of it, or comes too late to be."""
        state = self.state
        late = (
            state.outcome == FINISHED
            and state.settled == self._settled
            and bool(state.machines)
            and self._node.name not in state.machines
        )
        part = self._id in state.nodes or self._launch == state.launch
        return state.outcome if part or (late and self._launch is None) else None

    def change(self, now: float) -> Change | None:
        """Why the round this node works in is no longer current; None while it is.

        Args:
            now: this node's monotonic clock, in seconds.
        """
        state, mine, me = self.state, self.round, self.state.nodes.get(self._id)
        if self.phase is not Phase.WORKING or mine is None:
            return None
        if self.told is not None:
            return Change(Kind.CLOSED, self.told)
        if me is None or me.rank is None or (state.launch, state.generation) != (mine.launch, mine.generation):
            return Change(Kind.FENCED, "this node was expelled: it had given no sign of life")
        if self.wrote is None or now - self.wrote >= self._rules.fence:
            return Change(Kind.FENCED, f"no contact with the rendezvous for {self._rules.fence:g} s")
        if not state.complete:
            return Change(Kind.REOPENED, state.cause)
        return self._membership_change(mine)

    def _membership_change(self, mine: Round) -> Change | None:
        state = self.state
        for name, node in mine.members.items():
            if name not in state.nodes:
                return Change(Kind.LEAVE, f"{node.name} left")
            if name in self._dead and not state.nodes[name].done:
                return Change(Kind.LOST, f"{node.name} has given no sign of life for {self._rules.patience:g} s")
        for node in self._waiting.values():
            if len(mine.members) < self._rules.max_nodes:
                return Change(Kind.JOIN, f"{node.name} waits to join")
        return None

    @property
    def num_waiting(self) -> int:
        """Nodes that wait and that there is room for."""
        room = self._rules.max_nodes - len(self.state.members)
        return min(len(self._waiting), max(0, room)) if self.state.complete else 0

    @property
    def _dead(self) -> frozenset[str]:
        return self._liveness.dead - {self._id}

    @property
    def _waiting(self) -> dict[str, Node]:
        dead = self._dead
        return {name: node for name, node in self.state.nodes.items() if node.rank is None and name not in dead}

    # -- what it writes ------------------------------------------------------------------------------------------

    def step(self, state: State | None, now: float) -> State | None:
        """Take in the state that was read, and decide what to write.

        Args:
            state: None if there is none yet.
            now: this node's monotonic clock, in seconds.

        Returns:
            The state to write in its place; None if there is nothing to write.
        """
        self.state = state or State(launch=0)
        self._liveness.observe({name: node.beat for name, node in self.state.nodes.items()}, now)
        before = self.state
        after = self._next(before, now)
        me = after.nodes.get(self._id)
        if me is not None:
            due = self.wrote is None or now - self.wrote >= self._rules.interval
            if after is before and not due:
                return None
            self._node = replace(self._node, beat=self._node.beat + 1)
            after = with_node(after, self._id, replace(me, beat=self._node.beat))
        return None if after is before else after

    def accepted(self, state: State, began: float) -> None:
        """A write was accepted.

        Args:
            state: that was written.
            began: when the write began, on this node's monotonic clock.
        """
        self.state = state
        self.wrote = began
        if self._id in state.nodes:
            self._launch = state.launch
        if self.phase is Phase.OUT and self._id not in state.nodes:
            self.was_last = not self.others_work

    def _next(self, state: State, now: float) -> State:
        if self.phase is Phase.OUT:
            return without_node(state, self._id) if self._id in state.nodes else state
        if self.told is not None:
            return state
        if self.phase is Phase.SETTLING:
            return self._settle(state)
        if self._id not in state.nodes:
            return state if self.phase is Phase.WORKING else self._enter(state)
        if self._outcome is not None:
            return replace(state, outcome=self._outcome)
        if self._failure is not None and self._failure[0].launch == state.launch:
            state = charge(state, self._failure[0].generation, self._failure[1])
        if self.phase is Phase.WORKING:
            return self._work_on(state)
        return self._get_in(state, now)

    def _settle(self, state: State) -> State:
        if state.nodes and state.outcome is None:
            self._settled = state.settled
            return state
        me = replace(self._node, ready=False, rank=None)
        return with_node(new_launch(state, {}, self._settled), self._id, me)

    def _enter(self, state: State) -> State:
        """Add this node to those known; after the end of a launch, and at the very first, it begins another one."""
        me = replace(self._node, ready=True, rank=None)
        if state.outcome is not None or not state.nodes:
            return new_launch(state, {self._id: me}, self._settled)
        self.came_later = state.size > 0
        return with_node(state, self._id, me)

    def _work_on(self, state: State) -> State:
        me = state.nodes[self._id]
        if self._done and state.complete and not me.done:
            state = with_node(state, self._id, replace(me, done=True))
        members = state.members
        if state.complete and len(members) == state.size and all(node.done for node in members.values()):
            state = replace(state, outcome=FINISHED)
        return state

    def _get_in(self, state: State, now: float) -> State:
        me = state.nodes[self._id]
        members = state.members
        if state.complete:
            broken = len(members) < state.size or any(name in self._dead for name in members)
            over = me.rank is not None and (state.generation <= self._left or broken)
            deserted = all(name in self._dead for name in members)
            if not over and not deserted:
                return self._publish(state, me)
            state = open_round(state, self._cause or "the nodes of the last round are gone")
        if self._rules.fixed and me.rank is not None and (lost := self._lost(state)):
            return replace(state, outcome=lost)
        if not me.ready:
            state = with_node(state, self._id, replace(me, ready=True, done=False))
        last_call_is_over = self._last_call_is_over(state, now)
        if may_close(state, self._dead, self._rules, last_call_is_over):
            return close_round(state, self._dead, self._rules, self._settled)
        return state

    def _publish(self, state: State, me: Node) -> State:
        if me.rank == 0 and state.store is None and self._hosted is not None and self._hosted[0] == state.generation:
            return replace(state, store=self._hosted[1:])
        return state

    def _lost(self, state: State) -> str | None:
        """Which node of fixed membership is gone."""
        dead = [node.name for name, node in state.members.items() if name in self._dead]
        if not dead and len(state.members) == state.size:
            return None
        return f"{' and '.join(dead) or 'a node'} is gone, and with rendezvous=static no other one can take its place"

    def _last_call_is_over(self, state: State, now: float) -> bool:
        alive = [name for name in state.nodes if name not in self._dead]
        if state.size or len(alive) < self._rules.min_nodes:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        return self._enough_since is not None and now - self._enough_since >= self._rules.last_call
