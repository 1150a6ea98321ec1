"""What became of the jobs of a sweep: a file in each job's folder, and one table of all, on the screen and as a CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

JOB_FILE = "job.json"
TABLE_FILE = "sweep.csv"


class SweepFolder(Callback):
    """Notes where the sweep of this process is (``hydra.callbacks.sweep_folder`` in ``conf/config.yaml``)."""

    folder: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        SweepFolder.folder = Path(config.hydra.sweep.dir).absolute()


@dataclass(frozen=True)
class Job:
    """How a job ended.

    Args:
        number: of the job in its sweep.
        status: ``finished``, ``failed`` or ``stopped``.
        exit_code: that the job alone would have ended with.
        metric: name of the objective; None if there is none.
        direction: ``max`` or ``min``.
        objective: its value; None if the job did not get that far.
        overrides: of the job.
        error: the sentences or the traceback that it ended with.
    """

    number: int
    status: str
    exit_code: int
    metric: str | None
    direction: str
    objective: float | None
    overrides: list[str]
    error: str = ""

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the job."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JOB_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @property
    def values(self) -> dict[str, str]:
        """What was overridden, by key."""
        pairs = (override.lstrip("+~").partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}


def conclude() -> str:
    """Write the table of the sweep that this process started; the table to be shown, empty if there was no sweep."""
    folder = SweepFolder.folder
    if folder is None or not (jobs := _jobs(folder)):
        return ""
    metric = next((job.metric for job in jobs if job.metric), None) or "objective"
    keys = list(dict.fromkeys(key for job in jobs for key in job.values))
    columns = ["job", "status", "exit_code", metric, *keys]
    rows = [[job.number, job.status, job.exit_code, job.objective, *map(job.values.get, keys)] for job in jobs]
    with (folder / TABLE_FILE).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    lines = [_shown(jobs, metric, keys), f"sweep: {folder / TABLE_FILE}"]
    if any(job.status != "finished" for job in jobs):
        lines.append(f"the same command with hydra.sweep.dir={folder} goes on; finished jobs are left as they are")
    return "\n".join(lines)


def _jobs(folder: Path) -> list[Job]:
    found = [Job(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob(f"*/{JOB_FILE}")]
    return sorted(found, key=lambda job: job.number)


def _shown(jobs: Sequence[Job], metric: str, keys: Sequence[str]) -> str:
    """The table with the keys that differ; the best job has a star."""
    varied = [key for key in keys if len({job.values.get(key) for job in jobs}) > 1]
    done = [job for job in jobs if job.status == "finished" and job.objective is not None]
    choose = min if any(job.direction == "min" for job in done) else max
    best = choose(done, key=lambda job: job.objective or 0.0) if done else None
    rows = [["job", "status", metric, *varied]]
    for job in jobs:
        status = job.status if job.exit_code == 0 else f"{job.status} ({job.exit_code})"
        objective = "-" if job.objective is None else f"{job.objective:.4g}" + (" *" if job is best else "")
        rows.append([str(job.number), status, objective, *(job.values.get(key, "-") for key in varied)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
