"""Optimizer steps a second in steady state: this harness beside plain Lightning DDP under torchrun.

    python benchmarks/step_time.py

Both train ResNet-18 on the sample data, 32 images a worker and step, with two workers of one thread each, and
write a checkpoint every 50 steps; neither validates. The first steps are left out. Rounds alternate, so that a
busy machine changes little. A ratio of 0.95 means that a step takes 1.05 times as long as with plain Lightning. The
harness trains with elastic.consistency=bitwise, its default, and with the other two.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from peers.sides import BATCH, NONE, OURS, THEIRS, Program, in_turns, print_medians

SKIPPED_STEPS = 20
SECONDS = 600.0


def steps_a_second(side: str, workspace: Path, name: str, *, count: int) -> float:
    """The rate of ``count`` steps after the first ``SKIPPED_STEPS``, on rank 0."""
    with Program(side, workspace, name) as program:
        times = program.wait_for(partial(_times, program, SKIPPED_STEPS + count), SECONDS)
    return count / (times[SKIPPED_STEPS + count - 1] - times[SKIPPED_STEPS - 1])


def _times(program: Program, count: int) -> list[float] | None:
    times = [step.time for step in program.steps() if step.rank == 0]
    return times if len(times) >= count else None


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each measuring all (default: 3)")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed in a round (default: 200)")
    arguments = parser.parse_args()
    results = in_turns(arguments.rounds, partial(steps_a_second, count=arguments.steps), (OURS, BATCH, NONE, THEIRS))
    print_medians(f"{arguments.steps} steps with 2 workers", "steps/s", results)


if __name__ == "__main__":
    main()
