"""``ElasticRendezvous``: torch's rendezvous handler, over any backend that can get and compare-and-set one value.

``Contact``'s thread keeps this node alive and sees what happens; ``Member`` decides. What the agent asks of the handler
reads what was seen last, or waits for that thread, so a backend that hangs never holds up the agent for good.
See docs/decisions/0005-own-rendezvous.md.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from elastic_harness.errors import ClusterError
from elastic_harness.rendezvous import round_store
from elastic_harness.rendezvous.backends import StoreBackend
from elastic_harness.rendezvous.contact import Contact
from elastic_harness.rendezvous.member import Member
from elastic_harness.rendezvous.state import FINISHED, Node, Rules
from elastic_harness.rendezvous.view import Change, Phase, Round

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

_WAIT_SECONDS = 0.1


class ElasticRendezvous(RendezvousHandler):
    """Joins a node to the rounds of a run.

    The agent waits on ``reader`` beside its workers; when that becomes readable, ``changed()`` says why the round is no
    longer current. It then stops its workers and calls ``next_rendezvous()`` again.

    Args:
        backend: holds the state.
        run_id: the run.
        node: what the others are told of this node.
        node_id: unique for this handler.
        rules: of the run, the same on all nodes.
        settled: what this node settles for all if it is the first of a launch, for example the number of logical ranks.
        join_timeout: seconds that ``next_rendezvous`` waits for enough nodes; a spare waits as long as the run lasts.
        endpoint: as it is named in errors.
        on_wait: called again and again while ``next_rendezvous`` waits; may raise to give up.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        run_id: str,
        node: Node,
        node_id: str,
        rules: Rules,
        *,
        settled: Mapping[str, Any],
        join_timeout: float,
        endpoint: str,
        on_wait: Callable[[], None],
    ) -> None:
        self.on_wait = on_wait
        self._backend = backend.name
        self._lives_with = backend if isinstance(backend, StoreBackend) else None
        self._run_id = run_id
        self._node_id = node_id
        self._node = node
        self._rules = rules
        self._member = Member(node_id, node, rules, settled)
        self._contact = Contact(backend, self._member, endpoint)
        self._join_timeout = join_timeout
        self._waits_since = math.inf
        self._endpoint = endpoint
        self._store: TCPStore | None = None

    # -- torch's interface ---------------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """See base class."""
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """The store of a round is its agents' and its workers'."""
        return True

    def get_run_id(self) -> str:
        """The run and the number of its launch: another one for each time it was started anew."""
        return f"{self._run_id}.{self._member.state.launch}"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until this node is part of a complete round. Its workers must have stopped before.

        Raises:
            ClusterError: there were not enough nodes within ``join_timeout``, or the backend is lost.
            RendezvousClosedError: the run has failed on another node.
            RendezvousGracefulExitError: the run has finished without this node.
        """
        self._waits_since = time.monotonic()
        with self._contact.seen:
            change = self._member.change(time.monotonic())
            self._member.join(change.text if change else self._own_cause())
            self._store = None
            self._contact.rearm()
        self._contact.start()
        self._contact.ask()
        while True:
            joined = self._wait_for(lambda: self._member.joined)
            info = self._take_up(joined)
            if info is not None:
                return info
            self._pause()

    def _own_cause(self) -> str:
        """Why this node itself ends a round, in words for the others."""
        mine = self._member.round
        charged = [each for each in self.failures if mine is not None and each["generation"] == mine.generation]
        told: str | None = charged[-1].get("cause") if charged else None
        return told or f"{self._node.name} starts over"

    def num_nodes_waiting(self) -> int:
        """Nodes that wait and that there is room for; spare nodes are not counted."""
        with self._contact.seen:
            return self._member.num_waiting

    def is_closed(self) -> bool:
        """Whether the run has ended, for good or bad."""
        with self._contact.seen:
            return self._member.told is not None

    def set_closed(self) -> None:
        """End the run as failed, on all nodes."""
        self.close("it was closed")

    def shutdown(self) -> bool:
        """Leave, and give up all that was open. A node that hosts the store of a run that ended stays until the others
        have seen that, at most until they would take it for dead."""
        if self._hosts and self.is_closed():
            self._contact.wait_briefly(lambda: self._member.state.nodes.keys() <= {self._node_id}, self._rules.patience)
        self.leave()
        self._store = self._lives_with = None
        return self._contact.stop(self._rules.patience)

    # -- what the agent asks besides -----------------------------------------------------------------------------

    @property
    def reader(self) -> Connection:
        """Becomes readable when ``changed()`` has something to say."""
        return self._contact.reader

    @property
    def address(self) -> str:
        """Where the workers of other nodes reach this one."""
        return self._node.address

    @property
    def is_spare(self) -> bool:
        """Whether ``next_rendezvous`` waits only until a node is missing: as many as may train do."""
        with self._contact.seen:
            return self._member.is_spare

    @property
    def round(self) -> Round | None:
        """The round this node works in."""
        return self._member.round

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """The failures of all nodes in this launch that were charged, oldest first."""
        return self._member.state.failures

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which a node is taken for dead."""
        return self._rules.patience

    @property
    def margin(self) -> float:
        """Seconds from the moment when this node takes itself for expelled to the earliest one when others may."""
        return self._rules.interval

    def settle(self) -> Mapping[str, Any]:
        """What all nodes of this launch go by; if this one is the first, that is what it brought along.

        A job that is under way is not held up by that.

        Raises:
            ClusterError: the backend is lost.
            RendezvousGracefulExitError: the run has finished without this node.
        """
        self._waits_since = time.monotonic()
        with self._contact.seen:
            self._member.settle()
        self._contact.start()
        self._contact.ask()
        return self._wait_for(lambda: self._member.settled)

    @property
    def has_finished(self) -> bool:
        """The workers of all nodes have finished."""
        return self._member.told == FINISHED

    @property
    def others_can_go_on(self) -> bool:
        """Whether other nodes have what this one has, and do not need it for more."""
        with self._contact.seen:
            return self._member.others_work and not self._hosts

    @property
    def nobody_goes_on(self) -> bool:
        """Whether the run stops with this node, which has left or is about to."""
        if self._member.phase is Phase.OUT:
            return self._rules.private or self._member.was_last is True
        return self._member.told is None and not self.others_can_go_on

    @property
    def others_go_on(self) -> bool:
        """This node has left, and was not the last one."""
        return self._member.was_last is False

    @property
    def came_later(self) -> bool:
        """Whether this node joined a launch that had begun without it."""
        return self._member.came_later

    def may_write(self) -> bool:
        """Whether this node may write for the run: nobody else can have taken its place."""
        with self._contact.seen:
            return self._member.may_write(time.monotonic())

    @property
    def _hosts(self) -> bool:
        """Whether the rendezvous ends with this node."""
        return self._lives_with is not None and self._lives_with.hosts

    def changed(self) -> Change | None:
        """Why the round this node works in is no longer current; None while it is. Never waits."""
        with self._contact.seen:
            return self._member.change(time.monotonic())

    def charge_restart(self, failure: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """Count a failure of the current round, once for all nodes: the first one to say it counts.

        Args:
            failure: what there is to know of it, in plain JSON; ``cause`` says it in one phrase.

        Returns:
            All failures of this launch, oldest first, each with its ``generation``.
        """
        mine = self._member.round
        if mine is not None:
            with self._contact.seen:
                self._member.fail(failure)
            self._contact.wait_briefly(
                lambda: any(each["generation"] == mine.generation for each in self.failures), self._rules.patience
            )
        return self.failures

    def finish(self) -> None:
        """This node's workers have finished. When those of all nodes have, ``changed()`` says that the run has."""
        with self._contact.seen:
            self._member.finish()
            alone = len(self._member.state.members) == 1
        self._contact.wait_briefly(lambda: self._member.told, self._rules.patience if alone else 0.0)

    def close(self, reason: str) -> None:
        """End the run as failed, on all nodes.

        Args:
            reason: a phrase that every node shows.
        """
        with self._contact.seen:
            self._member.close(reason)
        self._contact.wait_briefly(lambda: self._member.told, self._rules.patience)

    def leave(self) -> None:
        """Leave politely: the others go on without this node, which costs them no restart. Its workers have stopped."""
        with self._contact.seen:
            self._member.leave()
        self._contact.wait_briefly(lambda: self._node_id not in self._member.state.nodes, self._rules.patience)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait_for(self, condition: Callable[[], _Value | None]) -> _Value:
        while True:
            with self._contact.seen:
                value = condition()
                outcome = self._member.told
            if outcome == FINISHED:
                raise RendezvousGracefulExitError(f"run {self._run_id} has finished; this node was not needed")
            if outcome is not None:
                raise RendezvousClosedError(outcome)
            if value is not None:
                return value
            self._pause()

    def _pause(self) -> None:
        """Wait for the next news, unless there is no hope for any."""
        self.on_wait()
        with self._contact.seen:
            self._contact.seen.wait(_WAIT_SECONDS)
        now = time.monotonic()
        silent = now - max(self._waits_since, self._contact.answered or self._waits_since)
        if self.is_spare and silent < self._rules.patience:
            self._waits_since = now
        if self._lives_with is not None and silent > self._rules.patience:
            raise ClusterError(
                f"rendezvous.endpoint={self._endpoint} is lost: the node that hosts the store of rendezvous=c10d is "
                "gone or cut off. Start the same command again to resume; with rendezvous=etcd any node may be lost."
            )
        if now - self._waits_since > self._join_timeout:
            raise ClusterError(self._late())

    def _late(self) -> str:
        state = self._member.state
        known = ", ".join(node.name for node in state.nodes.values()) or "none"
        trouble = (
            f"; the last answer of {self._endpoint}: {self._contact.error}" if self._contact.error is not None else ""
        )
        return (
            f"rendezvous.join_timeout={self._join_timeout:g} s have passed and no round with at least "
            f"elastic.min_nodes={self._rules.min_nodes} nodes has formed (known: {known}{trouble}): start more nodes, "
            "lower elastic.min_nodes, or raise rendezvous.join_timeout."
        )

    # -- the store of a round ------------------------------------------------------------------------------------

    def _take_up(self, joined: Round) -> RendezvousInfo | None:
        """The round with its store, once rank 0 has published that; None: look again."""
        if self._store is None and joined.rank == 0:
            self._store = round_store.host(self._node.address)
            with self._contact.seen:
                self._member.host(joined.generation, self._node.address, self._store.port)
            self._contact.ask()
        if joined.store is None:
            return None
        host, port = joined.store
        store = self._store if joined.rank == 0 else round_store.connect(host, port)
        with self._contact.seen:
            now = self._member.joined
            if store is None or now is None or now.generation != joined.generation:
                self._store = None
                return None
            self._member.work(joined)
        self._store = store
        return RendezvousInfo(store, joined.rank, len(joined.members), RendezvousStoreInfo(host, port))
