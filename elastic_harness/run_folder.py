"""The run folder: one a run, whatever the number of workers and restarts, and the run's identity.

config.yaml                         the resolved configuration of the last start
checkpoints/                        step_<n>.ckpt, best_<n>.ckpt, and a .json for each; elsewhere with checkpoint.dir
tensorboard/                        one TensorBoard run
logs/generation_<k>/rank_<r>.log    output of each worker; never deleted
logs/agent_<node>.log               what the agent did
events.jsonl                        the timeline
result.json                         how it ended
.lock, .workers.lock                held while it is in use; with several nodes each has its own
.node_memory, .states_<node>        what its part of the machines' memory is called; states, where that is small
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.fingerprint import compare, fingerprint_of
from elastic_harness.errors import ConfigError

if TYPE_CHECKING:
    from elastic_harness.result import Result

_LOCK = ".lock"
_LOCK_SECONDS = 10.0


class RunFolder:
    """Paths and small files of one run.

    Args:
        path: the folder; made when the run is entered.
        checkpoint_dir: where the checkpoints of several runs go; None is this folder.
        node: name of this node, if other nodes may share the folder; None keeps it for one process.

    Attributes:
        first: nobody else used the folder when it was entered.
    """

    def __init__(self, path: Path, checkpoint_dir: str | None = None, node: str | None = None) -> None:
        self.path = path.absolute()
        self.checkpoints = CheckpointFolder(
            self.path / "checkpoints" if checkpoint_dir is None else checkpoints_below(checkpoint_dir, self.path)
        )
        self.first = True
        suffix = f"_{node}" if node else ""
        self.workers_lock = self.path / f".workers{suffix}.lock"
        self.states = self.path / f".states{suffix}"
        self._lock = self.path / f"{_LOCK}{suffix}"
        self._shared_lock: int | None = None
        self.events = self.path / "events.jsonl"
        self.logs = self.path / "logs"
        self._config = self.path / "config.yaml"
        self._result = self.path / "result.json"

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the folder for this process, once no worker of an earlier one is left.

        Raises:
            ConfigError: another process or a worker of one holds it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock, workers_lock = self._lock.open("a+"), self.workers_lock.open("a")
        except OSError as error:
            raise ConfigError(
                f"run folder {self.path} cannot be written ({error.strerror}): choose another one with "
                "hydra.run.dir=PATH (in a script: run_dir), or give this user the right to write there."
            ) from error
        with lock, workers_lock:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not (_try_lock(lock.fileno()) and _try_lock(workers_lock.fileno())):
                if time.monotonic() > deadline:
                    lock.seek(0)
                    raise ConfigError(
                        f"run folder {self.path} is in use by process {lock.read().strip() or 'unknown'} or a worker "
                        "of it: wait until it ends, or start another run with another run_id (in a script: run_dir)."
                    )
                time.sleep(0.1)
            fcntl.flock(workers_lock, fcntl.LOCK_UN)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            with self._shared():
                yield

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Where several nodes may share the folder: keep it from a run of one process, and know who is the first."""
        if self._lock.name == _LOCK:
            yield
            return
        with (self.path / _LOCK).open("a+") as lock:
            self._shared_lock = lock.fileno()
            self.first = _try_lock(lock.fileno())
            deadline = time.monotonic() + _LOCK_SECONDS
            while not self.first and not _try_lock(lock.fileno(), fcntl.LOCK_SH):
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"run folder {self.path} is in use by a process that was started with elastic.max_nodes=1: "
                        "wait until it ends, or start another run with another run_id (in a script: run_dir)."
                    )
                time.sleep(0.1)
            yield

    def admit_others(self) -> None:
        """Let other nodes into the folder, once the first one has begun."""
        if self._shared_lock is not None:
            fcntl.flock(self._shared_lock, fcntl.LOCK_SH)

    def next_generation(self) -> int:
        """The number of the next worker group: one more than the highest that has logs."""
        return _next_number(self.logs, "generation")

    def log_folder(self, generation: int) -> Path:
        """The folder of a generation's worker logs, made if need be."""
        folder = self.logs / f"generation_{generation}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finished(self, resume: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """What ``result.json`` says of a run that finished, or None if there is something left to train.

        Args:
            resume: the key ``resume``.
            config: of this start, as ``config.yaml`` holds it. A run that finished with another ``trainer.max_epochs``,
                ``max_steps`` or ``max_time`` goes on.

        Raises:
            ConfigError: it finished as another experiment, so its result is not that of this one.
        """
        if resume == "never" or not self._result.exists() or not self._config.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(self._result.read_text())
            recorded = yaml.safe_load(self._config.read_text())
            before, now = recorded["trainer"], config["trainer"]
            same = all(before.get(key) == now.get(key) for key in ("max_epochs", "max_steps", "max_time"))
            if result["status"] != "finished" or not same:
                return None
        except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
            return None  # Damaged, so nothing is known; the checkpoints decide.
        if resume != "force":
            settled = {"elastic.logical_world_size": recorded["elastic"]["logical_world_size"]}  # unless it is given
            compare(fingerprint_of(recorded), {**settled, **fingerprint_of(config)}, str(self.path))
        return result

    def set_aside(self) -> None:
        """Move what an earlier run left here, and nothing else, into ``superseded_<n>``; not what others work on."""
        if not self.first:
            return
        names = ("checkpoints", "logs", "tensorboard")
        own = [self._config, self._result, self.events, *(self.path / name for name in names)]
        if entries := [entry for entry in own if entry.exists()]:
            target = self.path / f"superseded_{_next_number(self.path, 'superseded')}"
            target.mkdir()
            for entry in entries:
                entry.rename(target / entry.name)
        self.checkpoints.set_aside()

    def begin(self, config: str | None) -> list[str]:
        """Note that a start begins: the configuration is recorded, and what an earlier start came to is void.

        Args:
            config: content for ``config.yaml``; None leaves that file alone.

        Returns:
            The lines in which the configuration differs from that of the start before, as ``diff`` marks them.
        """
        if self.first:
            self._result.unlink(missing_ok=True)
        if config is None or not self.first:
            return []
        before = self._config.read_text(errors="replace").splitlines() if self._config.exists() else config.splitlines()
        self._write(self._config.name, config)
        changes = difflib.ndiff(before, config.splitlines())
        # Without run_id on the command line each start makes one; the folder is the run.
        return [line for line in changes if line.startswith(("+ ", "- ")) and not line[2:].startswith("run_id:")]

    def write_result(self, result: Result) -> None:
        """Write ``result.json``, whole or not at all."""
        self._write(self._result.name, json.dumps(asdict(result), indent=2) + "\n")

    def recorded(self, group: str) -> dict[str, Any]:
        """A group of ``config.yaml`` as the last start left it; empty if there is none.

        Raises:
            ConfigError: the file is damaged, so it is not known what the run is.
        """
        try:
            content = yaml.safe_load(self._config.read_text()) if self._config.exists() else {}
            return dict(content.get(group) or {})
        except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"{self._config} is damaged ({type(error).__name__}), and says with how many logical ranks the run was "
                "started: restore it, or start over with resume=never."
            ) from error

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.partial"
        temporary.write_text(text)
        temporary.rename(self.path / name)


def finished_text(path: str, result: Mapping[str, Any]) -> str:
    """What is said instead of training a run once more."""
    return (
        f"The run in {path} has finished after {result['step']} steps: raise trainer.max_epochs to train on, or use "
        "resume=never to start over."
    )


def checkpoints_below(checkpoint_dir: str, run_folder: Path) -> str:
    """The place below ``checkpoint.dir`` that belongs to one run: it has the last names of the run folder's path.

    Two of them, such as ``imagenet_elastic/night1``; three for a job of a sweep, whose last name is its number.
    """
    names = run_folder.parts[1:]
    top = checkpoint_dir.rstrip("/") if "://" in checkpoint_dir else str(Path(checkpoint_dir).absolute())
    return "/".join([top, *names[-3 if names[-1].isdigit() else -2 :]])


def hold_lock(path: str) -> None:
    """Share a lock for as long as this process lives: the run folder is not free while a worker of it is left."""
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_CREAT, 0o644), fcntl.LOCK_SH)


def _next_number(folder: Path, name: str) -> int:
    """One more than the highest ``<name>_<number>`` in a folder."""
    matches = (re.fullmatch(rf"{name}_(\d+)", entry.name) for entry in folder.glob(f"{name}_*"))
    return max((int(match[1]) for match in matches if match), default=-1) + 1


def _try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ConfigError(
            f"the run folder is on a file system without locks ({error.strerror}), which keep two starts of a run "
            "apart: choose another one with hydra.run.dir=PATH (in a script: run_dir), and put the checkpoints there "
            "with checkpoint.dir."
        ) from error
    return True
