"""Makes sure that what is saved can be loaded again, with ``torch.load(weights_only=True)``.

That loads tensors and plain containers and runs no code of the file's. Hyperparameters often hold more: those with an
obvious plain form get it, the others are refused where they are saved, not found at the first recovery. A module that
reads a configuration by attribute has to be given it again: ``load_from_checkpoint(path, cfg=cfg)``.
"""

from __future__ import annotations

import enum
import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from lightning_fabric.utilities.data import AttributeDict
from omegaconf import Container, DictConfig, ListConfig, OmegaConf

from elastic_harness.errors import ConfigError

# Lightning turns the hyperparameters into a class named here; a text stands for its own AttributeDict, whose
# values are attributes as those of a DictConfig are (pytorch_lightning.core.saving._convert_loaded_hparams).
_PLAIN_TYPES: dict[type, str] = {DictConfig: "AttributeDict", ListConfig: "AttributeDict"}


def converted(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint with plain values in the place of those that have an obvious plain form.

    These are OmegaConf's containers, Lightning's AttributeDict, paths, numpy's scalars, and enums that are a number or
    a text themselves.
    """
    result: dict[str, Any] = _plain(dict(checkpoint))
    return result


def refuse_what_does_not_load(checkpoint: Mapping[str, Any]) -> None:
    """Try whether everything but the tensors can be loaded again.

    Raises:
        ConfigError: something cannot; each such value is named by its key.
    """
    skeleton = _without_tensors(checkpoint)
    if not _loads(skeleton):
        raise ConfigError(
            [
                f"{key} in the checkpoint is a {type(value).__module__}.{type(value).__qualname__}, which "
                f"torch.load(weights_only=True) does not load again: {_fix(key)}"
                for key, value in _culprits(skeleton, "")
            ]
        )


def _fix(key: str) -> str:
    group, _, name = key.partition(".")
    if group in ("hyper_parameters", "datamodule_hyper_parameters"):
        return f'leave it out with self.save_hyperparameters(ignore=["{name.partition(".")[0]}"]).'
    return "store numbers, texts, tensors, lists and dictionaries of them in its place."


def _plain(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Container):
        return _plain(OmegaConf.to_container(value, resolve=True, enum_to_str=False))
    if kind in (dict, AttributeDict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if kind in (list, tuple):
        return kind(map(_plain, value))
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, enum.Enum) and isinstance(value, (int, str)):
        return value.value
    return _PLAIN_TYPES.get(value, value) if isinstance(value, type) else value


def _without_tensors(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return None
    if type(value) in (dict, OrderedDict):
        return {key: _without_tensors(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_tensors, value))
    return value


def _loads(value: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # whatever a class raises in its __reduce__
        return False
    return True


def _culprits(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The innermost values that do not load, with their keys."""
    parts = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    inner = [found for name, part in parts if not _loads(part) for found in _culprits(part, f"{key}.{name}")]
    yield from inner or [(key.removeprefix("."), value)]
