"""What it costs to lose nothing, and how much is lost all the same.

    python benchmarks/rescue.py

Three measurements of this harness alone, with ResNet-18 on the sample data and two workers of one thread each:

- a run in which one of the two workers is killed again and again, at random moments: optimizer steps trained again;
- SIGTERM to the agent of a run: seconds to its end;
- in one process, what a step waits for: the boundary copy, as a share of a step, and the copy of a 200 MB state into
  the node's memory, from where it is written in the background, beside a plain copy of the same tensors in memory.
  A rescue writes the same file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch
from peers.sides import OURS, Program, workspace
from torch.utils.data import DataLoader, TensorDataset

from elastic_harness import loops
from elastic_harness.checkpoint.boundary import Boundary
from elastic_harness.checkpoint.node_memory import NodeMemory, write_state
from imagenet.module import ImageClassifier

SECONDS = 300.0


def killed(folder: Path, kills: int, moments: random.Random) -> tuple[int, int]:
    """Kill a worker ``kills`` times: how often the run was resumed, and the steps trained again in all."""
    with Program(OURS, folder, "killed") as program:
        events = folder / "killed" / "run" / "events.jsonl"
        for number in range(kills):
            workers = program.wait_for(lambda number=number: _started(events, number), SECONDS)
            after = program.steps()[-1].step if program.steps() else 0
            program.wait_for(lambda after=after: bool(program.steps()) and program.steps()[-1].step > after, SECONDS)
            moment = time.monotonic() + moments.uniform(0.0, 2.0)
            program.wait_for(lambda moment=moment: time.monotonic() >= moment, SECONDS)
            os.kill(moments.choice(workers), signal.SIGKILL)
        resumed = program.wait_for(lambda: len(found := _events(events, "resumed")) == kills and found, SECONDS)
    return len(resumed), sum(event["steps_lost"] for event in resumed)


def stopped(folder: Path, name: str) -> float:
    """Seconds from SIGTERM at the agent, in the middle of training, to its end."""
    with Program(OURS, folder, name) as program:
        program.wait_for(lambda: len(program.steps()) > 20, SECONDS)
        return program.end(signal.SIGTERM, SECONDS)


def boundary_share(steps: int) -> tuple[float, float]:
    """Milliseconds of a step of ResNet-18 (32 images of 64 pixels), and of its boundary copy; medians."""
    torch.set_num_threads(1)
    module = ImageClassifier("resnet18", 10, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    images, labels = torch.randn(32 * steps, 3, 64, 64), torch.zeros(32 * steps, dtype=torch.int64)
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu",
    )  # fmt: skip
    boundary, copies, ends = Boundary(trainer), [], [time.perf_counter()]

    def reach(following: loops.Next) -> None:
        begun = time.perf_counter()
        boundary.reach(following)
        ends.append(time.perf_counter())
        copies.append(ends[-1] - begun)

    loops.install(trainer, reach)
    trainer.fit(module, DataLoader(TensorDataset(images, labels), 32))
    whole = [end - begin for begin, end in itertools.pairwise(ends[1:])]
    return 1e3 * statistics.median(whole), 1e3 * statistics.median(copies[1:])


def copies(folder: Path, rounds: int) -> tuple[float, float]:
    """Seconds to copy a 200 MB state in memory, and into the node's memory; medians."""
    state = {str(number): torch.randn(5_000_000) for number in range(10)}
    memory = NodeMemory(folder, 0, folder / ".states")
    plain, node = [], []
    for number in range(rounds):
        plain.append(_seconds(lambda: {name: tensor.clone() for name, tensor in state.items()}))
        node.append(_seconds(partial(write_state, state, number % 2, memory.places)))
    memory.drop()
    return statistics.median(plain), statistics.median(node)


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _events(path: Path, name: str) -> list[dict[str, int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def _started(events: Path, generation: int) -> list[int] | None:
    found = _events(events, "generation_started")[generation:]
    return [worker["pid"] for worker in found[0]["workers"]] if found else None  # type: ignore[attr-defined]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of one of two workers (default: 20)")
    parser.add_argument("--stops", type=int, default=3, help="runs that get SIGTERM (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    arguments = parser.parse_args()
    with workspace() as folder:
        step, boundary = boundary_share(40)
        print(f"boundary copy              {boundary:.2f} ms of a step of {step:.0f} ms: {boundary / step:.1%}")
        plain, node = copies(folder, 9)
        print(f"200 MB to the node's memory {node:.3f} s, a plain copy {plain:.3f} s: ratio {node / plain:.2f}")
        resumed, lost = killed(folder, arguments.kills, random.Random(arguments.seed))
        print(f"kills of one of 2 workers  {resumed} resumed, {lost} steps trained again")
        seconds = [stopped(folder, f"stopped-{number}") for number in range(arguments.stops)]
        print(f"SIGTERM to the end         {statistics.median(seconds):.2f} s (longest {max(seconds):.2f} s)")


if __name__ == "__main__":
    main()
