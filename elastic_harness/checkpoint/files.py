"""Checkpoint files: their names, atomic writing, finding the newest and removing old ones.

Names hold the step in fixed width and nothing that a shell or Hydra would need quoted:
``step_00000120.ckpt`` and, for those kept for their objective, ``best_00000120.ckpt``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal

_NAME = re.compile(r"(step|best)_(\d{8,})\.ckpt")
_TEMPORARY_SUFFIX = ".partial"

Kind = Literal["step", "best"]


def path_for(folder: Path, kind: Kind, step: int) -> Path:
    """The path of a checkpoint taken after ``step`` optimizer steps."""
    return folder / f"{kind}_{step:08d}.ckpt"


def step_of(path: Path) -> int:
    """The number of optimizer steps in a checkpoint's name.

    Raises:
        ValueError: the name is not one of ``path_for``.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint of this harness")
    return int(match[2])


def list_checkpoints(folder: Path, kind: Kind | None = None) -> list[Path]:
    """The checkpoints in a folder, those with the most steps last; an absent folder holds none."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file()]
    if kind is not None:
        found = [path for path in found if path.name.startswith(kind)]
    return sorted(found, key=lambda path: (step_of(path), path.name))


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps, whatever its age or kind."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def write(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a file under its final name is always whole.

    It goes to a temporary name in the same folder (a rename between file systems is a copy), is synced, renamed,
    and the folder is synced.
    """
    import torch  # here, so that looking for files is possible without it

    _put(path, lambda file: torch.save(checkpoint, file))


def copy(source: Path, path: Path) -> None:
    """Copy a finished file to a checkpoint's path, as ``write`` does it."""
    with source.open("rb") as content:
        _put(path, lambda file: shutil.copyfileobj(content, file, 1 << 22))


def _put(path: Path, write_to: Callable[[IO[bytes]], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep_partial(folder: Path) -> None:
    """Remove what an interrupted ``write`` left behind."""
    for path in folder.glob(f"*.ckpt{_TEMPORARY_SUFFIX}"):
        if path.is_file():
            path.unlink(missing_ok=True)


def prune(folder: Path, kind: Kind, keep: list[Path]) -> None:
    """Remove the checkpoints of one kind that are not in ``keep``."""
    for path in list_checkpoints(folder, kind):
        if path not in keep:
            path.unlink(missing_ok=True)
