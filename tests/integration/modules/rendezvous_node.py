"""One agent without workers: joins every round, says on stdout what it sees, and obeys lines on stdin.

Arguments: the rendezvous and the elastic group as JSON, and the run id.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import wait
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError

from elastic_harness import rendezvous
from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.errors import HarnessError


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    group, elastic, run_id = sys.argv[1:]
    handler = rendezvous.create(
        RendezvousConfig(**json.loads(group)), run_id, ElasticConfig(**json.loads(elastic)), settled={"size": 4}
    )
    while True:
        info = handler.next_rendezvous()
        info.store.set(f"node{info.rank}", "here")
        info.store.wait([f"node{rank}" for rank in range(info.world_size)])
        assert handler.round is not None
        say(
            rank=info.rank,
            nodes=info.world_size,
            generation=handler.round.generation,
            store=handler.round.store,
            launch=handler.get_run_id(),
            failures=len(handler.failures),
        )
        while (change := handler.changed()) is None:
            wait([handler.reader, sys.stdin], timeout=0.1)
            if sys.stdin in wait([sys.stdin], timeout=0):
                match sys.stdin.readline().strip():
                    case "fail":
                        handler.charge_restart({"said_by": run_id})
                        break
                    case "finish":
                        handler.finish()
                    case "leave" | "":
                        handler.shutdown()
                        return 0
        if change is not None:
            say(change=change.kind.value, text=change.text)
            if change.kind is rendezvous.Kind.CLOSED:
                handler.shutdown()
                return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RendezvousGracefulExitError as error:
        say(told=str(error))
    except RendezvousClosedError as error:
        say(closed=str(error))
        sys.exit(1)
    except HarnessError as error:
        say(error=str(error))
        sys.exit(error.exit_code)
