"""Nodes that share one state, in one thread and one time, for the tests of what each decides."""

from __future__ import annotations

from typing import Any

from elastic_harness.rendezvous.member import Member
from elastic_harness.rendezvous.state import Node, Rules, State
from elastic_harness.rendezvous.view import Kind, Phase

RULES = Rules(min_nodes=1, max_nodes=3, last_call=3.0, interval=0.5, attempts=4)


class Cluster:
    """Members that see each other's writes at once; ``pass_time`` lets them look every tenth of a second."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules, self.state, self.now = rules, None, 0.0
        self.members: dict[str, Member] = {}
        self.silent: set[str] = set()
        self.state: State | None

    def start(self, *names: str, machine: str | None = None, **settled: Any) -> Member:
        for name in names:
            self.members[name] = Member(name, Node(machine or name, name), self.rules, settled)
            self.members[name].join("")
        return self.members[names[-1]]

    def pass_time(self, seconds: float = 0.5) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for name in [name for name in self.members if name not in self.silent]:
                self._look(name)

    def work(self, seconds: float = 0.5) -> dict[str, int]:
        """Let time pass; the rank of each node in the round that was formed, once it is taken up."""
        self.pass_time(seconds)
        for name, member in self.members.items():
            if member.phase is Phase.JOINING and name not in self.silent and member.joined is not None:
                member.host(member.joined.generation, name, 1)
        self.pass_time(0.2)
        for name, member in self.members.items():
            if member.phase is Phase.JOINING and name not in self.silent and member.joined is not None:
                assert member.joined.store is not None
                member.work(member.joined)
        return {name: member.round.rank for name, member in self.members.items() if member.round is not None}

    def changes(self) -> dict[str, Kind]:
        seen = {name: member.change(self.now) for name, member in self.members.items()}
        return {name: change.kind for name, change in seen.items() if change is not None}

    def rejoin(self, *names: str) -> None:
        for name in names:
            self.members[name].join("")

    def _look(self, name: str) -> None:
        new = self.members[name].step(self.state, self.now)
        if new is not None:
            self.state = State.from_bytes(new.to_bytes())
            self.members[name].accepted(self.state, self.now)
