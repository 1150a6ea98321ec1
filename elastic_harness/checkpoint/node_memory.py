"""Memory of a node that outlives its workers: files in ``/dev/shm``, owned by the agent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_harness.checkpoint.fingerprint import compare
from elastic_harness.checkpoint.storage import KEPT
from elastic_harness.errors import CheckpointError

_SHARED_MEMORY = Path("/dev/shm")
_OWN = f"elastic-harness-{os.getuid()}-"
_TOKEN = ".node_memory"
_RUN_FOLDER, _FINGERPRINT = "run_folder.txt", "fingerprint.json"
_PREFIX = "state_"
# Weights, two moments of Adam, and as much again for what else there is; the newest of these, and one being written.
_STATES = 2 * 4
_WRITING = threading.Lock()


class NodeMemory:
    """Where states are until they are written, or taken over by the next generation; made at once.

    It outlives the agent, too: a later start of the run finds it by what ``.node_memory`` in the run folder says.

    Args:
        run_folder: the run's folder.
        weights: bytes of the module's parameters.
        on_disk: takes the states where ``/dev/shm`` is missing or small.

    Attributes:
        path: the folder for states.
        places: it, and what takes them when it is full.
    """

    def __init__(self, run_folder: Path, weights: int, on_disk: Path) -> None:
        _sweep()
        shared = _SHARED_MEMORY / f"{_OWN}{_token(run_folder)}"
        has_room = _made(shared) and _room_in(shared) >= _STATES * weights
        if not has_room:
            on_disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.places = (shared, on_disk) if has_room else (on_disk,)
        self.path = self.places[0]
        # An earlier start may have chosen the other one.
        self._folders = [folder for folder in (shared, on_disk) if has_room or folder == on_disk or _is_own(folder)]
        (self.path / _RUN_FOLDER).write_text(str(run_folder.absolute()))
        self._in_use: int | None = os.open(self.path / _RUN_FOLDER, os.O_RDONLY)
        fcntl.flock(self._in_use, fcntl.LOCK_SH)

    def require(self, fingerprint: Mapping[str, Any], *, force: bool) -> None:
        """See that the states are those of a run with this fingerprint, and note it.

        Raises:
            ConfigError: they are those of another one, and it is not forced.
        """
        noted = self.path / _FINGERPRINT
        if self.newest() is not None and noted.exists() and not force:
            compare(json.loads(noted.read_text()), fingerprint, str(self.path))
        noted.write_text(json.dumps(fingerprint))

    def newest(self) -> Path | None:
        """The state with the most steps that is whole."""
        for path in sorted(self._states(), key=step_of, reverse=True):
            if zipfile.is_zipfile(path):
                return path
            path.rename(path.with_suffix(".damaged"))
        return None

    def drop_before(self, step: int) -> None:
        """Remove the states with fewer steps."""
        for path in self._states():
            if step_of(path) < step:
                path.unlink(missing_ok=True)

    def release(self) -> None:
        """Leave the states to a later start."""
        if self._in_use is not None:
            os.close(self._in_use)
            self._in_use = None

    def drop_partial(self) -> None:
        """Remove what interrupted writes left; nobody may be writing."""
        for folder in self._folders:
            for path in folder.glob(f"{_PREFIX}*.partial"):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the states."""
        for path in self._states():
            path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove the folder with all that is in it."""
        self.release()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _states(self) -> list[Path]:
        return [path for folder in self._folders for path in folder.glob(f"{_PREFIX}*.ckpt")]


def state_path(folder: Path, step: int) -> Path:
    """Where a state after ``step`` optimizer steps goes in a node's memory."""
    return folder / f"{_PREFIX}{step:08d}.ckpt"


def write_state(state: dict[str, Any], step: int, places: Sequence[Path]) -> Path:
    """Write a state so that a file under its final name is always whole, whoever else writes the same one.

    Args:
        state: what ``torch.save`` can save.
        step: optimizer steps in it.
        places: the folders for it; a later one is for when those before it are full.

    Returns:
        The file.

    Raises:
        CheckpointError: none of the folders takes it.
    """
    reasons = []
    for folder in places:
        path = state_path(folder, step)
        try:
            _write(state, path)
        except (OSError, RuntimeError) as error:
            if not isinstance(error, OSError) and not _of_the_file(error):
                raise
            reasons.append(f"{folder} ({type(error).__name__}: {error})")
        else:
            return path
    raise CheckpointError(
        f"the state after step {step} cannot be put into {' or '.join(reasons)}: free room there. {KEPT}",
        permanent=True,
    )


def _of_the_file(error: RuntimeError) -> bool:
    """Whether torch says of the file that it cannot be written, for which it has no other exception."""
    return any(mark in str(error) for mark in ("inline_container", "PytorchStreamWriter", "PyTorchStreamWriter"))


def _write(state: dict[str, Any], path: Path) -> None:
    import torch  # here, so that the agent's side is possible without it

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with _WRITING, temporary.open("wb") as file:
            # What is in memory need not be guarded against a failing disk; the sums would take longer than the copy.
            in_memory = path.is_relative_to(_SHARED_MEMORY)
            checked = torch.serialization.get_crc32_options()
            torch.serialization.set_crc32_options(not in_memory)
            try:
                torch.save(state, file)
            finally:
                torch.serialization.set_crc32_options(checked)
            if not in_memory:
                os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def step_of(path: Path) -> int:
    """The number of optimizer steps in the name of a state."""
    return int(path.stem.removeprefix(_PREFIX))


def _token(run_folder: Path) -> str:
    """What the run's memory is called, on all nodes; another run in a folder of the same name has another one."""
    path, made = run_folder / _TOKEN, run_folder / f"{_TOKEN}.{secrets.token_hex(4)}"
    if not path.exists():
        made.write_text(secrets.token_hex(8))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(made)  # another node may be faster, and what it wrote must be whole
        made.unlink()
    return path.read_text()


def _made(folder: Path) -> bool:
    """Whether there is a folder in shared memory that belongs to this user, who alone may read it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return _is_own(folder)


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _room_in(folder: Path) -> int:
    """Bytes for states: what is free, and what the run has there already."""
    return shutil.disk_usage(folder).free + sum(path.stat().st_size for path in folder.iterdir())


def _sweep() -> None:
    """Free the memory of runs that are over and whose folder is gone."""
    for path in _SHARED_MEMORY.glob(f"{_OWN}*"):
        with contextlib.suppress(OSError), (path / _RUN_FOLDER).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_folder = Path(file.read())
            if not (run_folder / _TOKEN).exists() or _token(run_folder) != path.name.removeprefix(_OWN):
                shutil.rmtree(path, ignore_errors=True)
