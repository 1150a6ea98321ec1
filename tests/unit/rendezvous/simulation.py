"""A simulated cluster: nodes, their skewed clocks and one compare-and-set register, in virtual time, from a seed.

Only ``Member`` is real. Requests take time, are lost before or after they took effect, and arrive late; nodes crash,
freeze, lose their link, leave and start again. After every event the promises of the rendezvous are checked.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from elastic_harness.rendezvous.member import Member
from elastic_harness.rendezvous.state import FINISHED, Node, Rules, State
from elastic_harness.rendezvous.view import Kind, Phase

POLL = 0.25


@dataclass
class Faults:
    """What goes wrong, as probabilities or seconds.

    Args:
        loss: chance that a request or its answer is lost.
        delay: longest way of a request, one way.
        events: chance of an event (crash, freeze, cut, leave, failure, start) at each chance for one.
        skew: largest difference of a clock's speed from the true one.
    """

    loss: float = 0.05
    delay: float = 0.1
    events: float = 1.0
    skew: float = 0.01


class SimulatedNode:
    """One agent: its clock, its member, and whether it can run and be reached."""

    def __init__(self, name: str, rules: Rules, random: random.Random, skew: float) -> None:
        self.name = name
        self.member = Member(name, Node(f"machine-{name}", name), rules, {})
        self.offset, self.rate = random.uniform(-1e4, 1e4), random.uniform(1 - skew, 1 + skew)
        self.alive, self.frozen_until, self.cut_until = True, 0.0, 0.0
        self.stopping = False
        self.member.join("it has started")

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate

    def trains(self, now: float) -> bool:
        """Whether its workers may make a step now. A frozen agent's workers run on."""
        change = self.member.change(self.clock(now))
        stopped = change is not None and change.kind in (Kind.FENCED, Kind.CLOSED)
        return self.alive and self.member.phase is Phase.WORKING and not stopped


class Cluster:
    """Runs one schedule.

    Args:
        seed: of the schedule.
        rules: of the rendezvous.
        faults: what goes wrong.
    """

    def __init__(self, seed: int, rules: Rules, faults: Faults) -> None:
        self.random = random.Random(seed)
        self.rules, self.faults = rules, faults
        self.now = 0.0
        self.state: State | None = None
        self.version = 0
        self.writes = 0
        self.nodes: list[SimulatedNode] = []
        self.rounds: dict[int, tuple[str, ...]] = {}
        self.expelled: list[str] = []
        self.charged: set[int] = set()
        self.quiet = False
        self.work_is_done = False  # workers finish as soon as they are started
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # -- time ----------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, action))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; True as soon as ``until`` holds."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self.check()
            if until():
                return True
        self.now = end
        return until()

    # -- what happens to nodes -----------------------------------------------------------------------------------

    def start(self) -> SimulatedNode:
        node = SimulatedNode(f"n{len(self.nodes)}", self.rules, self.random, self.faults.skew)
        self.nodes.append(node)
        self.after(self.random.uniform(0, 1), lambda: self.when_awake(node, lambda: self.tick(node)))
        return node

    @property
    def living(self) -> list[SimulatedNode]:
        return [node for node in self.nodes if node.alive]

    def something_happens(self) -> None:
        """One event of chaos; the next one is planned."""
        if self.quiet:
            return
        self.after(self.random.uniform(0.1, 3), self.something_happens)
        if self.random.random() > self.faults.events or not self.living:
            return
        node = self.random.choice(self.living)
        event = self.random.choice(["start", "crash", "freeze", "cut", "leave", "fail", "crash_all"])
        seconds = self.random.choice([0.5, 2, 4, 8]) * self.random.random()
        if event == "start" and len(self.living) < 6:
            self.start()
        elif event == "crash":
            node.alive = False
        elif event == "crash_all" and self.random.random() < 0.2:
            for each in self.living:
                each.alive = False
            self.start()
        elif event == "freeze":
            node.frozen_until = self.now + seconds
        elif event == "cut":
            node.cut_until = self.now + seconds
        elif event == "leave":
            node.member.leave()
        elif event == "fail" and node.member.phase is Phase.WORKING:
            node.member.fail({"name": node.name})
            self.rejoin(node, "a worker failed")

    def rejoin(self, node: SimulatedNode, cause: str) -> None:
        """Stop the workers, which takes a while, then join the next round."""
        node.stopping = True

        def stopped() -> None:
            node.stopping = False
            if node.member.phase is not Phase.OUT:
                node.member.join(cause)

        self.after(self.random.uniform(0, 1), lambda: self.when_awake(node, stopped))

    # -- an agent's loop -----------------------------------------------------------------------------------------

    def when_awake(self, node: SimulatedNode, action: Callable[[], None]) -> None:
        if not node.alive:
            return
        if node.frozen_until > self.now:
            self.after(node.frozen_until - self.now, lambda: self.when_awake(node, action))
        else:
            action()

    def request(self, node: SimulatedNode, serve: Callable[[], object], answer: Callable[[object], None]) -> None:
        """Send a request over the link; the answer is None where it or the request was lost."""
        delay = self.faults.delay if not self.quiet else 0.01
        there, back = self.random.uniform(0, delay), self.random.uniform(0, delay)
        loss = 0 if self.quiet else self.faults.loss

        def lost() -> bool:
            return node.cut_until > self.now or self.random.random() < loss

        def arrive() -> None:
            result = None if lost() else serve()
            if lost():
                result = None
            self.after(back, lambda: self.when_awake(node, lambda: answer(result)))

        self.after(there, arrive)

    def tick(self, node: SimulatedNode) -> None:
        def consider(answer: object) -> None:
            if not isinstance(answer, tuple):
                return self.act(node)
            state, version = answer
            began = node.clock(self.now)
            new = node.member.step(state, began)
            if new is None:
                return self.act(node)

            def written(answer: object) -> None:
                if answer is True:
                    node.member.accepted(new, began)
                    self.act(node)
                else:
                    consider(answer)

            return self.request(node, lambda: self.compare_and_set(node, new, version), written)

        self.request(node, lambda: (self.state, self.version), consider)

    def compare_and_set(self, node: SimulatedNode, new: State, version: int) -> object:
        """True if it was written; otherwise what is there instead."""
        if self.version != version:
            return self.state, self.version
        self.check_write(node, self.state or State(launch=0), new)
        self.state, self.version = new, version + 1
        self.writes += 1
        return True

    def act(self, node: SimulatedNode) -> None:
        """What the agent does about what it has seen; then the next look."""
        member = node.member
        if member.phase is Phase.JOINING and (joined := member.joined) is not None:
            if joined.store is not None:
                member.work(joined)
            elif joined.rank == 0:
                member.host(joined.generation, node.name, joined.generation)
        if self.work_is_done and member.phase is Phase.WORKING:
            member.finish()
        change = member.change(node.clock(self.now))
        if change is not None and change.kind is Kind.FENCED:
            member.join(change.text)
        elif change is not None and change.kind is not Kind.CLOSED and not node.stopping:
            self.rejoin(node, change.text)
        self.after(POLL * self.random.uniform(0.5, 1.5), lambda: self.when_awake(node, lambda: self.tick(node)))

    # -- promises ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """All that train believe in the same round, each with its own rank."""
        training = [node for node in self.nodes if node.trains(self.now)]
        rounds = [node.member.round for node in training]
        assert len({(each.launch, each.generation, *each.members) for each in rounds if each}) <= 1, "split brain"
        assert len({each.rank for each in rounds if each}) == len(rounds), "two nodes have the same rank"

    def check_write(self, node: SimulatedNode, old: State, new: State) -> None:
        assert new.launch >= old.launch
        assert new.generation >= old.generation, "a generation came back"
        assert State.from_bytes(new.to_bytes()) == new if self.writes % 50 == 0 else True
        self.expelled += [name for name in old.nodes if name not in new.nodes and name != node.name]
        generations = [failure["generation"] for failure in new.failures]
        assert len(generations) == len(set(generations)), "one failure was charged twice"
        if new.launch == old.launch:
            assert list(new.failures)[: len(old.failures)] == list(old.failures), "a charge was lost"
        if new.generation == old.generation:
            return
        members = tuple(new.members)
        assert new.generation not in self.rounds, "two memberships for one round"
        self.rounds[new.generation] = members
        assert self.rules.min_nodes <= len(members) <= self.rules.max_nodes
        assert [each.rank for each in new.members.values()] == list(range(new.size))
        survivors = [name for name in old.members if name in new.members]
        assert list(members)[: len(survivors)] == survivors, "ranks did not stay with their nodes"

    def settled(self) -> bool:
        """Every node that lives and wants to is in one current round, or waits as a spare beside a full one."""
        wanting = [node for node in self.living if node.member.phase is not Phase.OUT]
        working = [node for node in wanting if node.member.phase is Phase.WORKING]
        if any(node.member.change(node.clock(self.now)) or node.stopping for node in working):
            return False
        full = len(working) == self.rules.max_nodes
        return bool(working) and (len(working) == len(wanting) or full)

    def finished(self) -> bool:
        """Every node that lives and did not leave knows that the run has finished, spares too."""
        return all(node.member.told == FINISHED for node in self.living if node.member.phase is not Phase.OUT)

    def calm_down(self) -> None:
        """Nothing goes wrong any more, and there are nodes enough."""
        self.quiet = True
        for node in self.nodes:
            node.cut_until = self.now
        while len([node for node in self.living if node.member.phase is not Phase.OUT]) < self.rules.min_nodes:
            self.start()


def rules(**changes: float) -> Rules:
    """Rules for the simulation: 1 s between signs of life, 4 missed ones are death."""
    return replace(Rules(1, 4, last_call=1.0, interval=1.0, attempts=4), **changes)  # type: ignore[arg-type]
