"""The bytes of a checkpoint on their way into a file."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK = 4 * 2**20


class HashingWriter:
    """A file to write to that hashes and counts what passes through.

    Args:
        file: where it goes.

    Attributes:
        error: what writing failed with. torch.save goes on after an error, and raises another one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def write_content(source: Mapping[str, Any] | Path, file: HashingWriter) -> None:
    """Write a checkpoint's bytes.

    Args:
        source: the state, or a finished file of it.
        file: where they go.
    """
    if isinstance(source, Path):
        with source.open("rb") as finished:
            shutil.copyfileobj(finished, file, _BLOCK)
        return
    import torch  # here, so that looking for files is possible without it

    try:
        torch.save(source, file)  # type: ignore[arg-type]
    except Exception:
        if file.error is not None:
            raise file.error from None
        raise


def tensor_bytes(state: Any) -> int:
    """Bytes of the tensors in nested containers, each memory once: a little less than a checkpoint of them takes."""
    return sum(dict(_memories(state)).values())


def _memories(state: Any) -> Iterator[tuple[int, int]]:
    """Address and bytes of what the tensors lie in."""
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        for value in state:
            yield from _memories(value)
    elif hasattr(state, "untyped_storage"):
        memory = state.untyped_storage()
        yield memory.data_ptr(), memory.nbytes()
