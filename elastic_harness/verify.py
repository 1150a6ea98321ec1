"""``elastic-harness verify``: trains a few steps with 1, 2 and 3 workers, one of them killed, and compares the weights.

torch is not imported here: each run is a ``train.py`` of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_harness.errors import ConfigError, HarnessError

_LOGICAL_RANKS = 4
_VARIED = ("elastic.nproc_per_node", "hydra.run.dir", "run_id")
_KILLED = 2
"""The number of workers of the run in which one is killed."""


@dataclass(frozen=True)
class Row:
    """One run: number of workers, whether one was killed, and its ``result.json``."""

    workers: int
    killed: bool
    result: dict[str, Any]

    def __str__(self) -> str:
        workers = f"{self.workers}, one killed" if self.killed else str(self.workers)
        return f"{workers:16}{self.result['restarts']:>8}{self.result['step']:>7}   {self.result['weights_sha256']}"


def verify(project: Path, overrides: Sequence[str], steps: int) -> Iterator[str]:
    """Lines of a table, each as soon as its run has finished, and the verdict.

    Args:
        project: the folder with ``train.py``.
        overrides: as for ``train.py``.
        steps: optimizer steps of a run.

    Raises:
        HarnessError: a run failed, or the weights differ.
    """
    if own := [key for key in _VARIED if any(override.startswith(f"{key}=") for override in overrides)]:
        raise ConfigError(f"{own[0]} is what verify varies from run to run: leave it out.")
    yield f"{'workers':16}{'restarts':>8}{'steps':>7}   weights_sha256"
    hashes = set()
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        for workers in (1, 2, 3):
            row = _run(project, Path(folder) / str(workers), overrides, workers, steps)
            if row.killed and not row.result["restarts"]:
                raise HarnessError(f"No worker was killed, since the run ended after {row.result['step']} steps.")
            hashes.add(row.result["weights_sha256"])
            yield str(row)
    if len(hashes) > 1:
        raise HarnessError(
            "The weights differ: look for randomness that torch, numpy and random do not know of, for state that a "
            "step leaves behind outside of parameters and buffers, or for what depends on the rank."
        )
    yield "The same weights, bit for bit."


def _run(project: Path, folder: Path, overrides: Sequence[str], workers: int, steps: int) -> Row:
    kill = workers == _KILLED
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    defaults = {
        "elastic.logical_world_size": _LOGICAL_RANKS,
        "elastic.num_threads": 1,
        "trainer.limit_val_batches": 2,
        "trainer.max_steps": steps,
        "checkpoint.every_n_steps": max(1, steps // 4),
        "elastic.nproc_per_node": workers,
        "hydra.run.dir": folder,
    }
    command = [sys.executable, str(project / "train.py"), *overrides]
    command += [f"{key}={value}" for key, value in defaults.items() if key not in given]
    if kill:
        command += [
            "+callbacks.kill_once._target_=elastic_harness.kill_once.KillOnce",
            f"+callbacks.kill_once.step={max(1, steps // 2)}",
            f"+callbacks.kill_once.rank={workers - 1}",
            f"+callbacks.kill_once.marker={folder.with_suffix('.killed')}",
        ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise HarnessError(f"{done.stderr.rstrip()}\nThe run with {workers} workers ended with {done.returncode}.")
    return Row(workers, kill, json.loads((folder / "result.json").read_text()))
