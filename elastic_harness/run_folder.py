"""The run folder: one a run, whatever the number of workers and restarts, and the run's identity.

config.yaml                         the resolved configuration of the last start
checkpoints/                        step_<n>.ckpt, best_<n>.ckpt
tensorboard/                        one TensorBoard run
logs/generation_<k>/rank_<r>.log    output of each worker; never deleted
logs/agent_<node>.log               what the agent did
events.jsonl                        the timeline
result.json                         how it ended
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from elastic_harness.config import RunConfig
from elastic_harness.errors import ConfigError

if TYPE_CHECKING:
    from elastic_harness.result import Result

_LOCK = ".lock"
_LOCK_SECONDS = 10.0


class RunFolder:
    """Paths and small files of one run.

    Args:
        path: the folder; made when the run is entered.
        checkpoints: folder of the checkpoints; null is ``checkpoints`` in the run folder.
    """

    def __init__(self, path: Path, checkpoints: str | None = None) -> None:
        self.path = path.absolute()
        self.checkpoints = Path(checkpoints).absolute() if checkpoints else self.path / "checkpoints"
        self.events = self.path / "events.jsonl"
        self.logs = self.path / "logs"
        self._config = self.path / "config.yaml"
        self._result = self.path / "result.json"

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the folder for this process; workers that outlive a killed agent are waited for.

        Raises:
            ConfigError: another process holds it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a+")
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir={self.path} cannot be written ({error.strerror}): choose another folder with "
                "hydra.run.dir=... or give this user the right to write there."
            ) from error
        with lock:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(lock.fileno()):
                if time.monotonic() > deadline:
                    lock.seek(0)
                    raise ConfigError(
                        f"run_id: the run in {self.path} is in use by process {lock.read().strip() or 'unknown'}: "
                        "wait until it ends, or start another run with another run_id."
                    )
                time.sleep(0.1)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def next_generation(self) -> int:
        """The number of the next worker group: one more than the highest that has logs."""
        numbers = [
            int(match[1])
            for folder in self.logs.glob("generation_*")
            if (match := re.fullmatch(r"generation_(\d+)", folder.name))
        ]
        return max(numbers, default=-1) + 1

    def log_folder(self, generation: int) -> Path:
        """The folder of a generation's worker logs, made if need be."""
        folder = self.logs / f"generation_{generation}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finished(self, run: RunConfig) -> dict[str, Any] | None:
        """What ``result.json`` says of a run that finished, or None if there is something left to train.

        A run that finished with another ``trainer.max_epochs``, ``max_steps`` or ``max_time`` goes on.
        """
        if run.resume == "never" or not self._result.exists() or not self._config.exists():
            return None
        result: dict[str, Any] = json.loads(self._result.read_text())
        recorded = yaml.safe_load(self._config.read_text()).get("trainer", {})
        same_length = all(recorded.get(key) == run.trainer.get(key) for key in ("max_epochs", "max_steps", "max_time"))
        return result if result["status"] == "finished" and same_length else None

    def set_aside(self) -> None:
        """Move everything that an earlier run left here into ``superseded_<n>``."""
        entries = [entry for entry in self.path.iterdir() if entry.name != _LOCK]
        entries = [entry for entry in entries if not entry.name.startswith("superseded_")]
        if entries:
            number = sum(1 for _ in self.path.glob("superseded_*"))
            target = self.path / f"superseded_{number}"
            target.mkdir()
            for entry in entries:
                entry.rename(target / entry.name)

    def write_result(self, result: Result) -> None:
        """Write ``result.json``, whole or not at all."""
        self._write(self._result.name, json.dumps(asdict(result), indent=2) + "\n")

    def write_config(self, text: str) -> None:
        """Write ``config.yaml``, whole or not at all."""
        self._write(self._config.name, text)

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.partial"
        temporary.write_text(text)
        temporary.rename(self.path / name)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
