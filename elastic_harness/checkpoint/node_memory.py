"""Memory of a node that outlives its workers: files in ``/dev/shm``, owned by the agent."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "rescue_"


class NodeMemory:
    """Where the states of interrupted workers are kept until the next generation, or a checkpoint, has taken over.

    The name of the folder follows from the run folder, so that the states outlive the agent, too.

    Args:
        run_folder: the run's folder; it takes the states where there is no ``/dev/shm``.
    """

    def __init__(self, run_folder: Path) -> None:
        digest = hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:16]
        shared = os.access(_SHARED_MEMORY, os.W_OK)
        self.path = (
            _SHARED_MEMORY / f"elastic-harness-{os.getuid()}-{digest}" if shared else run_folder / ".node_memory"
        )

    def make(self) -> None:
        """Make the folder, for nobody else to read."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.path} belongs to another user")

    def path_for(self, step: int) -> Path:
        """Where a state after ``step`` optimizer steps goes."""
        return self.path / f"{_PREFIX}{step:08d}.ckpt"

    def drop(self, step: int | None = None) -> None:
        """Remove what is superseded.

        Args:
            step: a state of this many steps is safe elsewhere; None removes everything.
        """
        if step is None:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for path in newest_first(self.path):
            if step_of(path) <= step:
                path.unlink(missing_ok=True)


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


def newest_first(folder: Path) -> list[Path]:
    """The states in a node's memory, those with the most steps first."""
    return sorted(folder.glob(f"{_PREFIX}*.ckpt"), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The number of optimizer steps in the name of a state."""
    return int(path.stem.removeprefix(_PREFIX))
