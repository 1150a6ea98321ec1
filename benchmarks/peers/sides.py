"""The two sides of a comparison as programs: started, watched through their trace, ended with all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from peers import trace

PROJECT = Path(__file__).parents[2]
WORKERS, SEED, CHECKPOINT_STEPS = 2, 42, 50
EPOCHS = 10_000
"""More than any benchmark waits for."""
MAX_RESTARTS = 1000
OURS, THEIRS = "elastic-harness", "torchrun + Lightning"
BATCH, NONE = "consistency=batch", "consistency=none"

# In the environment of every process of a program.
_MARK = "BENCHMARK_PROGRAM"
_POLL_SECONDS = 0.002
_OUTPUT_LINES = 30

_T = TypeVar("_T")


class Ended(Exception):  # noqa: N818  (an outcome; ``Program.wait_for`` also knows TimeoutError)
    """A program ended although it had more to do; holds the end of what it printed."""


class Program:
    """One side's run, or one of its nodes, in a session of its own, with workers of one thread each.

    Args:
        side: ``OURS`` or ``THEIRS``.
        workspace: folder with the sample data, which both sides read.
        name: of its own folder in there; a folder that holds a run of the same side is gone on with.
        options: of the side's own program; by default those for ``WORKERS`` workers on one node.
        place: what runs a program where it is to be.
        run: folder of the run; one in its own folder by default.
    """

    def __init__(
        self,
        side: str,
        workspace: Path,
        name: str,
        *,
        options: Sequence[str] = (),
        place: Sequence[str] = (),
        run: Path | None = None,
    ) -> None:
        folder = workspace / name
        folder.mkdir(exist_ok=True)
        self._trace = folder / "trace.txt"
        self._output = folder / "output.txt"
        paths = run or folder / "run", self._trace, workspace / "digits"
        command = [*place, *_COMMANDS[side](*paths, options)]
        self._mark = str(folder)
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT / "benchmarks"), _MARK: self._mark}
        self.started = time.time()
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def steps(self) -> list[trace.Step]:
        """What its workers have done so far, those of an earlier program in the same folder included."""
        return trace.read(self._trace)

    def wait_for(self, condition: Callable[[], _T | None], seconds: float) -> _T:
        """Wait until a condition gives something, and return that.

        Args:
            condition: asked again and again; None or False is not yet.
            seconds: how long at most.

        Raises:
            Ended: the program ended before.
            TimeoutError: it took longer.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None
            value = condition()
            if value:
                return value
            if ended:
                printed = "\n".join(self._output.read_text().splitlines()[-_OUTPUT_LINES:])
                raise Ended(f"{printed}\nended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def send_signal(self, number: int) -> None:
        """Send the program a signal."""
        self._process.send_signal(number)

    def end(self, number: int, seconds: float) -> float:
        """Send the program a signal and wait for its end; seconds that took."""
        begun = time.monotonic()
        self._process.send_signal(number)
        self._process.wait(seconds)
        return time.monotonic() - begun

    def stop(self) -> None:
        """End its processes, whatever they are doing, and wait until they are gone."""
        self._process.kill()
        self._process.wait()
        while family := list(self._family()):
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=1)

    def _family(self) -> Iterator[psutil.Process]:
        """The processes that come of it, those without a parent too."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(_MARK) == self._mark:
                    yield process


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder that is removed in the end, also on Ctrl-C and SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


def in_turns(
    rounds: int, measure: Callable[[str, Path, str], _T], sides: Sequence[str] = (OURS, THEIRS)
) -> dict[str, list[_T]]:
    """Measure the sides in turns, so that what else the machine does hits all.

    Args:
        rounds: how many results a side.
        measure: called with the side, the workspace and a new name for ``Program``.
        sides: what is compared.

    Returns:
        The results of each side, round by round.
    """
    results: dict[str, list[_T]] = {side: [] for side in sides}
    with workspace() as folder:
        for number in range(rounds):
            for side, measured in results.items():
                measured.append(measure(side, folder, f"{list(results).index(side)}-{number}"))
    return results


def print_medians(title: str, unit: str, results: Mapping[str, Sequence[float]]) -> None:
    """One line a side: the median, the range, and the median over the rounds of the ratio to ``THEIRS``."""
    print(f"{title}, median of {len(results[THEIRS])} rounds")
    print(f"{'':24}{unit:>10}{'min':>8}{'max':>8}{'ratio':>8}")
    for side, values in results.items():
        ratio = statistics.median(value / other for value, other in zip(values, results[THEIRS], strict=True))
        print(f"{side:24}{statistics.median(values):10.2f}{min(values):8.2f}{max(values):8.2f}{ratio:8.2f}")


def _ours(run: Path, trace_path: Path, data_root: Path, options: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        "train.py",
        "+experiment=imagenet_elastic",
        f"hydra.run.dir={run}",
        f"seed={SEED}",
        f"data.root={data_root}",
        f"elastic.nproc_per_node={WORKERS}",
        "elastic.num_threads=1",
        f"restart.max_restarts={MAX_RESTARTS}",
        f"checkpoint.every_n_steps={CHECKPOINT_STEPS}",
        "trainer.accelerator=cpu",
        f"trainer.max_epochs={EPOCHS}",
        "trainer.limit_val_batches=0",
        "+callbacks.trace._target_=peers.step_trace.StepTrace",
        f"+callbacks.trace.path={trace_path}",
        *options,
    ]


def _theirs(run: Path, trace_path: Path, data_root: Path, options: Sequence[str]) -> list[str]:
    options = options or ("--standalone", f"--nproc-per-node={WORKERS}")
    script = ["-m", "peers.plain_lightning", str(run), str(trace_path), str(data_root)]
    return [sys.executable, "-m", "torch.distributed.run", *options, f"--max-restarts={MAX_RESTARTS}", *script]


_COMMANDS: dict[str, Callable[[Path, Path, Path, Sequence[str]], list[str]]] = {
    OURS: _ours,
    BATCH: lambda *arguments: [*_ours(*arguments), f"elastic.{BATCH}"],
    NONE: lambda *arguments: [*_ours(*arguments), f"elastic.{NONE}"],
    THEIRS: _theirs,
}
