"""Pickling what a launch sends to its workers, and naming what cannot be pickled."""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl

from elastic_harness.errors import ConfigError


def dumps(trainer: pl.Trainer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The pickle of a launch.

    Made with the plain pickler: torch's own would put the parameters into shared memory, and all workers would
    train the same tensors.

    Raises:
        ConfigError: something does not pickle; the message names it by attribute.
    """
    try:
        return pickle.dumps((trainer, function, args, kwargs))
    except Exception as error:  # whatever a class raises in its __reduce__
        culprit = _culprit([*args, *kwargs.values(), trainer])
        raise ConfigError(
            f"{culprit} cannot be sent to the workers ({error}): make it in setup() or when it is first used, "
            "or leave it out in __getstate__."
        ) from error


def _culprit(roots: list[Any]) -> str:
    """The attribute path to the first thing that does not pickle."""
    tracer = _Tracer()
    for root in roots:
        try:
            tracer.dump(root)
        except Exception:
            return _attribute_path(tracer.chain)
    return "something"


class _Tracer(pickle._Pickler):
    """A pickler that knows where it is; only the one written in Python calls ``save`` for every object."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.chain: list[Any] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.chain.append(obj)
        super().save(obj, save_persistent_id)  # type: ignore[misc]
        self.chain.pop()


def _attribute_path(chain: list[Any]) -> str:
    """Readable path along a chain of objects, each pickled as a part of the one before."""
    path = type(chain[0]).__name__
    owner = chain[0]
    for parent, child in itertools.pairwise(chain):
        if isinstance(parent, Mapping):
            keys = [key for key, value in parent.items() if value is child]
            is_state = any(parent is state or parent == state for state in [getattr(owner, "__dict__", None)])
            path += "".join(f".{key}" if is_state else f"[{key!r}]" for key in keys[:1])
        if hasattr(child, "__dict__"):
            owner = child
    return f"{path} (a {type(chain[-1]).__qualname__})"
