"""What a launch asks of the script that calls ``fit()``."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import pytorch_lightning as pl

from elastic_harness.errors import ConfigError
from elastic_harness.run_folder import RunFolder

_trained_here: dict[Path, weakref.ref[pl.LightningModule]] = {}


def require_same_module(module: pl.LightningModule, folder: RunFolder) -> None:
    """A second ``fit()`` of this process in a folder goes on with the first one, which another module cannot mean."""
    if _trained_here.setdefault(folder.path, weakref.ref(module))() is not module:
        raise ConfigError(
            f"run_dir={folder.path} holds the run of another module that this process trained: "
            "give each fit() its own ElasticStrategy(run_dir=...), for example one for each fold."
        )


def require_script() -> None:
    """Workers import the script that is running, so it has to be a file."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is not None and not Path(path).exists():
        raise ConfigError(
            f"the script is read from {path}, and every worker imports it: save it as a file and run that."
        )
