"""One agent without workers: joins every round, writes down what it sees, and obeys what it is told."""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError

from elastic_harness import rendezvous
from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.errors import HarnessError


def run(rendezvous_group: dict[str, Any], elastic: dict[str, Any], run_id: str, output: Path, told: Connection) -> None:
    """The whole process. One line of JSON for everything it sees goes to ``output``."""
    with output.open("w", buffering=1) as out:
        sys.stdout = sys.stderr = out
        try:
            handler = rendezvous.create(
                RendezvousConfig(**rendezvous_group), run_id, ElasticConfig(**elastic), settled={"size": 4}
            )
            _join_every_round(handler, told)
        except RendezvousGracefulExitError as error:
            _say(told=str(error))
        except RendezvousClosedError as error:
            _say(closed=str(error))
            sys.exit(1)
        except HarnessError as error:
            _say(error=str(error))
            sys.exit(error.exit_code)


def _join_every_round(handler: rendezvous.ElasticRendezvous, told: Connection) -> None:
    while True:
        info = handler.next_rendezvous()
        info.store.set(f"node{info.rank}", "here")
        info.store.wait([f"node{rank}" for rank in range(info.world_size)])
        assert handler.round is not None
        _say(
            rank=info.rank,
            nodes=info.world_size,
            generation=handler.round.generation,
            store=handler.round.store,
            launch=handler.get_run_id(),
            failures=len(handler.failures),
        )
        if not _work(handler, told):
            handler.shutdown()
            return


def _work(handler: rendezvous.ElasticRendezvous, told: Connection) -> bool:
    """Until the round is over; whether there is to be another one."""
    while (change := handler.changed()) is None:
        wait([handler.reader, told], timeout=0.1)
        match told.recv() if told.poll() else None:
            case "fail":
                handler.charge_restart({"said_by": "a test"})
                return True
            case "finish":
                handler.finish()
            case "leave":
                return False
    _say(change=change.kind.value, text=change.text)
    return change.kind is not rendezvous.Kind.CLOSED


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)
