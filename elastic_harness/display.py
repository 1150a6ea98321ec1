"""What a run shows in the terminal of the process that started it.

One progress bar that survives restarts where the output is a terminal; elsewhere a line for each validation.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from elastic_harness.errors import ConfigError
from elastic_harness.messages import Evaluated, Phase
from elastic_harness.messages import Progress as WorkerProgress
from elastic_harness.restart import Decision, Failure

if TYPE_CHECKING:
    from elastic_harness.result import Result
    from elastic_harness.run_folder import RunFolder


# A log that says nothing for longer looks as if the run hung.
_SILENCE_SECONDS = 30.0


class SteadyConsole(Console):
    """A console that goes quiet when its reader is gone: the run goes on, and its folder is the record."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display:
    """Prints a run's course.

    Args:
        console: where to; the default is stdout.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or SteadyConsole(soft_wrap=True, markup=False, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._told_at = time.monotonic()
        self._counted_from: tuple[float, int] | None = None

    @property
    def quiet(self) -> bool:
        """Whether nobody can be shown anything any more."""
        return self._console.quiet

    def line(self, text: str) -> None:
        """Print one line above the progress bar."""
        self._told_at = time.monotonic()
        try:
            self._console.print(text)
        except OSError:  # a full disk behind a redirection
            self._console.quiet = True

    def header(self, facts: Mapping[str, str]) -> None:
        """Print what is about to run, a line a fact."""
        width = max(map(len, facts))
        for name, value in facts.items():
            self.line(f"  {name:<{width}}  {value}")

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress bar while it lasts, if the output is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, auto_refresh=False, transient=True) as self._bar:
            self._task = self._bar.add_task("", total=None, epoch=0, state="starting", visible=False)
            try:
                yield
            finally:
                self._bar = None

    def update(self, workers: Sequence[WorkerProgress]) -> None:
        """Show how far the workers are."""
        if not workers:
            return
        first = workers[0]
        if self._bar is None:
            self._tell_now_and_then(first)
            return
        training = first.phase == Phase.TRAINING and first.step > 0
        loss = "" if math.isnan(first.loss) else f"loss {first.loss:.3f}"
        state = loss if training else Phase(first.phase).name.lower()
        total = first.total_steps if first.total_steps > 0 else None
        fields: dict[str, Any] = {"epoch": first.epoch, "state": state}
        self._bar.update(self._task, completed=first.step, total=total, visible=total is not None, **fields)
        self._bar.refresh()

    def _tell_now_and_then(self, first: WorkerProgress) -> None:
        """Where there is no bar, a line after a while without one, so that a long epoch is not silence."""
        now = time.monotonic()
        since, step = self._counted_from or (now, first.step)
        self._counted_from = since, step
        if now - self._told_at < _SILENCE_SECONDS or first.step <= step:
            return
        total = f" of {first.total_steps}" if first.total_steps > 0 else ""
        self.line(f"step {first.step}{total}, {(first.step - step) / (now - since):.3g} steps/s")
        self._counted_from = now, first.step

    def started(self, generation: int, pids: Sequence[int]) -> None:
        """Name the processes of a generation, by rank."""
        self.line(f"generation {generation}: workers {' '.join(map(str, pids))}")

    def restarting(self, failure: Failure, decision: Decision) -> None:
        """Say what went wrong, when another generation follows."""
        pause = f", after {decision.delay:.0f} s" if decision.delay >= 0.5 else ""
        self.line(f"{decision.reason}{pause} at step {failure.step}: {failure.describe()}")

    def resumed(self, checkpoint: str | None, step: int) -> None:
        """Say where a generation goes on, unless it is at the beginning."""
        if checkpoint is not None:
            self.line(f"going on from step {step} ({Path(checkpoint).name})")

    def set_aside(self, checkpoint: str, reason: str, moved_to: str) -> None:
        """Name a damaged checkpoint that is not used."""
        self.line(f"{checkpoint} is damaged: {reason}; it is now {Path(moved_to).name}, and the one before it is used")

    def evaluated(self, message: Evaluated) -> None:
        """Print the metrics of a validation."""
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in message.metrics.items())
        self.line(f"epoch {message.epoch}  step {message.step}  {metrics}")

    def summary(
        self, result: Result, folder: RunFolder, notice: str | None = None, unwritten: Path | None = None
    ) -> None:
        """Print how the run ended.

        Args:
            result: how.
            folder: of the run.
            notice: the notice that stopped it, if one did.
            unwritten: the state in this node's memory that no checkpoint could be made of.
        """
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in result.metrics.items() if value is not None)
        status = "stopped" if result.status == "preempted" else result.status
        if notice is not None:
            status = f"{status} ({notice})"
        course = (
            f"{status}: {_count(result.step, 'step')} in {result.wall_seconds:.0f} s, "
            f"{_count(result.restarts, 'restart')}, {_count(result.resizes, 'resize')}, "
            f"{_count(result.steps_lost, 'step')} trained again"
        )
        self.line(f"{course}  {metrics}".rstrip())
        self.line(f"run folder: {shown_path(folder.path)}")
        if result.status == "preempted":
            source = _resume_point(folder)
            if unwritten is not None:
                source = f"{unwritten} on this machine, and on others from {source}"
            self.line(f"the same command goes on from {source}")
        elif result.status == "failed" and result.step > 0:
            self.line(f"once that is mended, the same command goes on from {_resume_point(folder)}")


def _resume_point(folder: RunFolder) -> str:
    try:
        names = folder.checkpoints.names()
    except ConfigError:  # The run was stopped, perhaps because of that; its end is told all the same.
        return "the newest checkpoint, once that can be read again"
    return f"the newest checkpoint, {names[-1]}" if names else "the beginning: there is no checkpoint yet"


def shown_path(path: Path) -> str:
    """The path as short as a user in this folder needs it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
