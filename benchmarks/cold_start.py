"""Seconds from the start of the program to the end of its first optimizer step: this harness beside torchrun.

    python benchmarks/cold_start.py

Both train ResNet-18 on the sample data with two workers of one thread each: ``train.py
+experiment=imagenet_elastic``, and a plain Lightning script with DDP under ``torchrun --standalone``. Rounds
alternate, after one of each that warms the file cache and writes the data. The end of the step is written down by
a callback in the worker. A ratio below 1 means that the harness is faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from peers.sides import Program, in_turns, print_medians

SECONDS = 300.0


def cold_start(side: str, workspace: Path, name: str) -> float:
    """Seconds until the first step of a new run."""
    with Program(side, workspace, name) as program:
        first = program.wait_for(program.steps, SECONDS)[0]
    return first.time - program.started


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each measuring both (default: 3)")
    arguments = parser.parse_args()
    results = in_turns(1 + arguments.rounds, cold_start)
    measured = {side: seconds[1:] for side, seconds in results.items()}
    print_medians("Start of the program to first step, 2 workers", "seconds", measured)


if __name__ == "__main__":
    main()
