"""Checkpoints for the tests of their files, and what is seen of them."""

from __future__ import annotations

from pathlib import Path

import torch

from elastic_harness.checkpoint import files
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts

STATE = {"weights": torch.arange(2000.0), "name": "a"}


def write(folder: CheckpointFolder, *steps: int, kind: files.Kind = "step") -> None:
    for step in steps:
        folder.write({**STATE, "step": step}, kind, Facts(step))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest_step(folder: CheckpointFolder) -> int | None:
    found, _ = folder.newest_valid()
    return found.manifest.step if found else None
