"""Memory of a node that outlives its workers: files in ``/dev/shm``, owned by the agent."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "state_"
# Weights, two moments of Adam, and as much again for what else there is; the newest of these, and one being written.
_STATES = 2 * 4


class NodeMemory:
    """Where states are until they are written, or taken over by the next generation; made at once.

    The name of the folder follows from the run folder, so that the states outlive the agent, too.

    Args:
        run_folder: the run's folder; it takes the states where ``/dev/shm`` is missing or small.
        weights: bytes of the module's parameters.
    """

    def __init__(self, run_folder: Path, weights: int) -> None:
        digest = hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:16]
        self.path = _SHARED_MEMORY / f"elastic-harness-{os.getuid()}-{digest}"
        if not self._made() or shutil.disk_usage(_SHARED_MEMORY).free < _STATES * weights:
            self.drop()
            self.path = run_folder / ".node_memory"
            self.path.mkdir(mode=0o700, exist_ok=True)

    def _made(self) -> bool:
        """Whether there is a folder in shared memory that belongs to this user, who alone may read it."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            return self.path.stat().st_uid == os.getuid()
        except OSError:
            return False

    def path_for(self, step: int) -> Path:
        """Where a state goes."""
        return state_path(self.path, step)

    def newest(self) -> Path | None:
        """The state with the most steps."""
        return max(self._states(), key=step_of, default=None)

    def drop_before(self, step: int) -> None:
        """Remove the states with fewer steps, and what an interrupted write left."""
        for path in self._states():
            if step_of(path) < step:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the states."""
        for path in self._states():
            path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _states(self) -> list[Path]:
        return list(self.path.glob(f"{_PREFIX}*.ckpt"))


def state_path(folder: Path, step: int) -> Path:
    """Where a state after ``step`` optimizer steps goes in a node's memory."""
    return folder / f"{_PREFIX}{step:08d}.ckpt"


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a state so that a file under its final name is always whole."""
    import torch  # here, so that the agent's side is possible without it

    temporary = path.with_name(f"{path.name}.partial")
    # What is in memory need not be guarded against a failing disk; the sums would take longer than the copy.
    checked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, temporary)
    finally:
        torch.serialization.set_crc32_options(checked)
    temporary.rename(path)


def step_of(path: Path) -> int:
    """The number of optimizer steps in the name of a state."""
    return int(path.stem.removeprefix(_PREFIX))
