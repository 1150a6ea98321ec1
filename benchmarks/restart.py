"""Seconds from the SIGKILL of a worker to the first new optimizer step: this harness beside torchrun.

    python benchmarks/restart.py

Both train ResNet-18 on the sample data with two workers of one thread each and write a checkpoint every 50 steps:
``train.py +experiment=imagenet_elastic``, and a plain Lightning script with DDP under ``torchrun --standalone``
that resumes from its last checkpoint. In each round each of them has a worker, either one, killed at random
moments. The first step of the next workers is written down by a callback in them. A program that takes longer
than a minute hangs; that is counted, left out of the medians, and it is started again. So is one that gives up.
A ratio below 1 means that the harness is faster. "lost" is the median number of steps that are trained again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from peers.sides import CHECKPOINT_STEPS, OURS, THEIRS, WORKERS, Ended, Program, in_turns
from peers.trace import Step

START_SECONDS = 300.0
HANG_SECONDS = 60.0
# After the first checkpoint, or after the first step of later workers: up to about as long as 50 steps take.
MOMENT_SECONDS = (0.5, 6.0)


@dataclass(frozen=True)
class Restart:
    """How one kill went.

    Args:
        outcome: ``restarted``, ``hung`` or ``gave up``.
        seconds: kill to first new step, if it restarted.
        lost: optimizer steps that had been done and were trained again.
    """

    outcome: str
    seconds: float = 0.0
    lost: int = 0


def restarts(side: str, workspace: Path, name: str, *, kills: int, moments: random.Random) -> list[Restart]:
    """Kill a worker of one run again and again."""
    done: list[Restart] = []
    while len(done) < kills:
        with Program(side, workspace, name) as program:
            earlier = {step.pid for step in program.steps()}
            program.wait_for(partial(_all_new, program, earlier), START_SECONDS)
            # A step later the checkpoint is written: every restart has one to load.
            program.wait_for(lambda: program.steps()[-1].step > CHECKPOINT_STEPS, START_SECONDS)
            while len(done) < kills:
                done.append(_restart(program, moments))
                if done[-1].outcome != "restarted":
                    break
    return done


def _restart(program: Program, moments: random.Random) -> Restart:
    moment = time.monotonic() + moments.uniform(*MOMENT_SECONDS)
    program.wait_for(lambda: time.monotonic() >= moment, START_SECONDS)
    steps = program.steps()
    current = {step.rank: step.pid for step in steps}
    killed = time.time()
    os.kill(current[moments.choice(sorted(current))], signal.SIGKILL)
    reached = max(step.step for step in program.steps() if step.pid in current.values())
    try:
        new = program.wait_for(partial(_all_new, program, {step.pid for step in steps}), HANG_SECONDS)
    except TimeoutError:
        return Restart("hung")
    except Ended:
        return Restart("gave up")
    return Restart("restarted", new.time - killed, max(reached - new.step + 1, 0))


def _all_new(program: Program, earlier: set[int]) -> Step | None:
    """The first step of workers that are not among the earlier ones, once each of them has done one."""
    new = [step for step in program.steps() if step.pid not in earlier]
    return min(new) if len({step.rank for step in new}) == WORKERS else None


def print_table(results: dict[str, Sequence[Restart]]) -> None:
    """One line a side."""
    seconds = {side: [each.seconds for each in all_ if each.outcome == "restarted"] for side, all_ in results.items()}
    print(f"SIGKILL of one of 2 workers to first new step, {len(results[OURS])} kills of each")
    print(f"{'':24}{'seconds':>10}{'min':>8}{'max':>8}{'ratio':>8}{'lost':>8}{'hung':>8}{'gave up':>9}")
    for side, all_ in results.items():
        outcomes = [each.outcome for each in all_]
        counts = f"{outcomes.count('hung'):8}{outcomes.count('gave up'):9}"
        if not seconds[side]:
            print(f"{side:24}{'-':>10}{'-':>8}{'-':>8}{'-':>8}{'-':>8}{counts}")
            continue
        median = statistics.median(seconds[side])
        ratio = f"{median / statistics.median(seconds[THEIRS]):.2f}" if seconds[THEIRS] else "-"
        lost = statistics.median(each.lost for each in all_ if each.outcome == "restarted")
        span = f"{median:10.2f}{min(seconds[side]):8.2f}{max(seconds[side]):8.2f}"
        print(f"{side:24}{span}{ratio:>8}{lost:8.0f}{counts}")


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="kills of each in a round (default: 5)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, each starting both (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    rounds = in_turns(arguments.rounds, partial(restarts, kills=arguments.kills, moments=moments))
    print_table({side: [restart for each in all_ for restart in each] for side, all_ in rounds.items()})


if __name__ == "__main__":
    main()
