"""The failures of a run: those of all nodes, each counted once, for the restart budget is the run's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing.connection import wait

from elastic_harness.rendezvous import Change, ElasticRendezvous, Kind
from elastic_harness.restart import Failure
from elastic_harness.stop_signals import StopSignals


class RunFailures:
    """What this node tells the others of failures, and hears of theirs.

    Args:
        nodes: the rendezvous with the others.
        stop: ends a wait for them.
    """

    def __init__(self, nodes: ElasticRendezvous, stop: StopSignals) -> None:
        self._nodes = nodes
        self._stop = stop

    def charge(self, failure: Failure, generation: int) -> list[Failure]:
        """Count a failure.

        Args:
            failure: seen by this node.
            generation: that it ended.

        Returns:
            All there were on any node, oldest first; of this generation the one that was told first.
        """
        told = replace(failure, traceback="")
        charged = self._nodes.charge_restart({**asdict(told), "cause": failure.describe()})
        failures = [Failure.from_json(each) for each in charged]
        if not any(each["generation"] == generation for each in charged):
            return [*failures, failure]
        if failures[-1] == told:
            failures[-1] = failure
        return failures

    def cause_elsewhere(self, generation: int, raise_if_stopped: Callable[[], None]) -> Change | None:
        """What other nodes say of a generation whose workers here only lost their peers.

        Args:
            generation: that has ended.
            raise_if_stopped: called again and again while they are waited for.
        """
        if self._nodes.round is None or len(self._nodes.round.members) == 1:
            return None
        deadline = time.monotonic() + 2 * self._nodes.patience
        while (change := self._nodes.changed()) is None and (left := deadline - time.monotonic()) > 0:
            told = [each for each in self._nodes.failures if each["generation"] == generation]
            if told:
                return Change(Kind.REOPENED, told[0]["cause"])
            wait([self._nodes.reader, self._stop.reader], timeout=left)
            raise_if_stopped()
        return change
