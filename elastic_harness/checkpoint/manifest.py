"""What lies beside each checkpoint and says what it must be: ``step_00000120.json`` for ``step_00000120.ckpt``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Facts:
    """What a checkpoint is a state of.

    Args:
        step: optimizer steps of the run.
        epoch: epochs finished.
        generation: the worker group that made it.
        fingerprint: what defines the run's result, as ``checkpoint.fingerprint`` lists it.
    """

    step: int
    epoch: int = 0
    generation: int = 0
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest(Facts):
    """Facts, and the bytes that the checkpoint has to have.

    Args:
        size: bytes.
        sha256: their hash.
    """

    size: int = 0
    sha256: str = ""

    def to_bytes(self) -> bytes:
        """The content of its file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what ``to_bytes`` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            content = json.loads(data)
            return cls(**{each.name: content[each.name] for each in fields(cls)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a manifest: {error}") from error
