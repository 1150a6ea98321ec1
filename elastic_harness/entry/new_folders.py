"""Which folders a start has made, so that a start that fails on bad input leaves none of them behind.

Hydra makes the run folder before it calls the job. ``NewFolders`` is one of Hydra's callbacks: it looks
just before that (``hydra.callbacks.new_folders`` in ``conf/config.yaml``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

_there_before: set[Path] = set()


class NewFolders(Callback):
    """Notes what is there already before Hydra makes the run folder."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _note(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _note(config.hydra.sweep.dir)


def _note(folder: str) -> None:
    path = Path(folder).absolute()
    _there_before.clear()
    _there_before.update(p for p in (path, *path.parents) if p.exists())
    if path.is_dir():
        _there_before.update(path.iterdir())


def remove_new_empty_folders(folder: Path) -> None:
    """Remove the folder, and then each parent in turn, as long as it is empty and was made by this start."""
    if not _there_before:
        return  # The callback was taken out of the config: it is not known what is new.
    path = folder.absolute()
    while path not in _there_before and path.is_dir() and not any(path.iterdir()):
        path.rmdir()
        path = path.parent
