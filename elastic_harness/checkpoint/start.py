"""What is checked about checkpoints before any worker starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml

from elastic_harness.checkpoint import plain_state
from elastic_harness.checkpoint.files import CheckpointFolder, checkpoint_of
from elastic_harness.checkpoint.fingerprint import compare, fingerprint_of
from elastic_harness.checkpoint.storage import Storage, readable, writable
from elastic_harness.config.rules import RESUME_WORDS
from elastic_harness.errors import CheckpointError, ConfigError
from elastic_harness.run_folder import RunFolder

_WRITE_TEST = "write_test"
_OWNER = "run_folder.txt"


def check(folder: RunFolder, module: pl.LightningModule, config: str, resume: str) -> dict[str, Any]:
    """See that checkpoints can be written and loaded again, and that those that are there are this run's.

    Args:
        folder: the run's folder.
        module: what is trained.
        config: what ``config.yaml`` will hold.
        resume: the key ``resume``.

    Returns:
        The run's fingerprint.

    Raises:
        ConfigError: one of these is not so.
    """
    plain_state.refuse_what_does_not_load(plain_state.converted({"hyper_parameters": dict(module.hparams)}))
    claim(folder, take_over=resume == "force")
    prepare(folder.checkpoints)
    fingerprint = fingerprint_of(yaml.safe_load(config))
    newest = folder.checkpoints.newest_manifest()
    if newest is not None and resume not in ("never", "force"):
        compare(newest.fingerprint, fingerprint, folder.checkpoints.location)
    elif newest is None and resume not in RESUME_WORDS:
        _verify(Path(resume))
    return fingerprint


def claim(folder: RunFolder, *, take_over: bool) -> None:
    """See that ``checkpoint.dir`` holds no checkpoints of another run, and note whose they are from now on.

    Args:
        folder: the run's folder.
        take_over: go on with those of another run.

    Raises:
        ConfigError: the place is that of a run whose folder is here, too, or it cannot be written.
    """
    storage, ours = folder.checkpoints.storage, str(folder.path)
    if folder.checkpoints.location.startswith(f"{ours}/"):
        return
    with readable(storage):
        owner = storage.get(_OWNER).decode(errors="replace") if _OWNER in storage.names() else None
    if owner not in (None, ours) and Path(owner).exists() and not take_over:
        raise ConfigError(
            f"checkpoint.dir: {folder.checkpoints.location} holds the checkpoints of the run in {owner}, not those of "
            f"{ours}: choose another checkpoint.dir or run folder, or take them over with resume=force."
        )
    if owner != ours:
        with _before_training(storage):
            storage.put(_OWNER, ours.encode())


def prepare(folder: CheckpointFolder) -> None:
    """Remove what a write that was cut short left, and see that there can be another one.

    Raises:
        ConfigError: nothing can be written there, or there is no room for a checkpoint as large as the newest.
    """
    storage = folder.storage
    with _before_training(storage):
        storage.put(_WRITE_TEST, b"0")
        storage.remove(_WRITE_TEST)
        being_written = storage.sweep()
        names = set(storage.names())
        for name in names:
            checkpoint = checkpoint_of(name)
            if checkpoint is not None and checkpoint not in names | being_written:
                storage.remove(name)
        newest = folder.newest_manifest()
        folder.check_space(newest.size if newest else 1)


@contextmanager
def _before_training(storage: Storage) -> Iterator[None]:
    """What would be a failure of the run later is bad input now."""
    try:
        with writable(storage, "", 1):
            yield
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _verify(path: Path) -> None:
    """A checkpoint given by its path may come from anywhere; if a manifest lies beside it, it must keep to that."""
    if path.with_suffix(".json").exists():
        try:
            CheckpointFolder(path.parent).verified(path.name)
        except ValueError as error:
            raise ConfigError(f"resume={path} is damaged: {error}. Choose another checkpoint.") from error
