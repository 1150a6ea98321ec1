"""Real runs for the integration tests: ``python train.py`` as a user starts it, watched through its run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PROJECT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "modules"
SECONDS = 120.0


class Run:
    """One start of a program in a process group of its own, with two digits_mlp workers unless told otherwise.

    Args:
        folder: the run folder.
        command: the program and its arguments.
        cwd: the folder it is started in.
        environment: variables to add; None removes one.
    """

    def __init__(self, folder: Path, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        outputs = Path(tempfile.mkdtemp(prefix="output-", dir=folder.parent))
        self.stdout_path, self.stderr_path = outputs / "stdout.txt", outputs / "stderr.txt"
        with self.stdout_path.open("w") as out, self.stderr_path.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={
                    **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join([str(MODULES), str(PROJECT)]),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    @property
    def result(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return content

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name so far."""
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def workers(self, generation: int = -1) -> list[int]:
        """Pids of the workers of a generation, by rank; of the newest one by default."""
        event = self.wait_until(lambda: self.events("generation_started"))[generation]
        return [worker["pid"] for worker in sorted(event["workers"], key=lambda worker: worker["rank"])]

    def wait_until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Wait for a condition to hold and return what it returned; fails when the program ends before."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            value = condition()
            if value:
                return value
            if ended or time.monotonic() > deadline:
                pytest.fail(f"waited in vain (exit code {self.process.poll()})\n{self.stdout}\n{self.stderr}")
            time.sleep(0.01)

    def wait_for_checkpoint(self, step: int) -> None:
        """Wait until a checkpoint of at least ``step`` steps was saved."""
        self.wait_until(lambda: any(event["step"] >= step for event in self.events("checkpoint_saved")))

    def finish(self, code: int = 0, seconds: float = SECONDS) -> None:
        """Wait for the end and check the exit code."""
        try:
            ended_with = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s\n{self.stdout}\n{self.stderr}")
        assert ended_with == code, f"exit code {ended_with}\n{self.stdout}\n{self.stderr}"

    def clean_up(self) -> None:
        """End whatever is left of it, workers included."""
        for pid in [self.process.pid, *(w["pid"] for e in self.events("generation_started") for w in e["workers"])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts ``train.py`` with the digits recipe, two workers and a checkpoint every 20 steps; cleans up."""
    runs: list[Run] = []

    def start(*overrides: str, cwd: Path = PROJECT, experiment: str = "digits_mlp", **environment: str) -> Run:
        folder = tmp_path / "run"
        flags = [override for override in overrides if override.startswith("-")]
        command = [
            sys.executable,
            str(PROJECT / "train.py"),
            *flags,
            f"+experiment={experiment}",
            f"hydra.run.dir={folder}",
            "elastic.nproc_per_node=2",
            "checkpoint.every_n_steps=20",
            "trainer.max_epochs=20",
            "data.batch_size=64",
            *[override for override in overrides if override not in flags],
        ]
        runs.append(Run(folder, command, cwd, environment))
        return runs[-1]

    yield start
    for run in runs:
        run.clean_up()
    free_memory(tmp_path)


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a plain script in ``tmp_path``; its run folder is ``elastic`` unless told otherwise."""
    runs: list[Run] = []

    def run_script(script: Path, *arguments: str, folder: str = "elastic", **environment: str) -> Run:
        command = [sys.executable, str(script), *arguments]
        runs.append(Run(tmp_path / folder, command, tmp_path, environment))
        return runs[-1]

    yield run_script
    for run in runs:
        run.clean_up()
    free_memory(tmp_path)


def free_memory(folder: Path) -> None:
    """Free the shared memory of the runs below a folder whose agent was killed."""
    for token in folder.rglob(".node_memory"):
        shutil.rmtree(f"/dev/shm/elastic-harness-{os.getuid()}-{token.read_text()}", ignore_errors=True)


def noisy_network(folder: Path) -> tuple[str, ...]:
    """Overrides that train the noisy network, which leaves its ``ledger`` and ``decisions`` in a folder."""
    return (
        "~optimizer",
        "~model.hidden",
        "model._target_=noisy.NoisyCNN",
        f"+model.ledger={folder / 'ledger'}",
        f"+model.decisions={folder / 'decisions'}",
        "data._target_=noisy.NoisyDigits",
        "objective.metric=val/loss",
        "objective.direction=min",
    )


def traced(path: Path) -> int:
    """The most optimizer steps that a worker has finished, as ``probes.StepTrace`` wrote them down."""
    whole = path.read_text().split("\n")[:-1]  # the last line may still be written
    return max((json.loads(line)["step"] for line in whole), default=0)


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that run."""
    living = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                living.append(pid)
    return living
