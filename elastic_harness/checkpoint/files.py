"""The checkpoints of a run: written whole or not at all, trusted only as far as their manifests go.

Names hold the step in fixed width and nothing that a shell or Hydra would need quoted:
``step_00000120.ckpt`` and, for those kept for their objective, ``best_00000120.ckpt``. Beside each lies its manifest,
``step_00000120.json``. It is put in place *before* the checkpoint, and a checkpoint that is there and whole is never
written again, so at any moment

    manifest and checkpoint     agree, or the checkpoint is damaged
    checkpoint alone            is damaged: no write that was cut short leaves this
    manifest alone              is what a write, or a removal, that was cut short leaves

A damaged checkpoint gets a name that ends in ``.damaged``, and is never removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from elastic_harness.checkpoint.content import HashingWriter, tensor_bytes, write_content
from elastic_harness.checkpoint.manifest import Facts, Manifest
from elastic_harness.checkpoint.storage import KEPT, open_storage, readable, writable
from elastic_harness.errors import CheckpointError, ConfigError, FencedError

_NAME = re.compile(r"(step|best)_(\d{8,})\.ckpt")
_DAMAGED = ".damaged"

Kind = Literal["step", "best"]


class Checkpoint(NamedTuple):
    """A checkpoint whose bytes are those its manifest names; ``path`` is what loads it."""

    path: str
    manifest: Manifest


class Damaged(NamedTuple):
    """A checkpoint that was set aside: its path before, what is wrong with it, its path now."""

    path: str
    reason: str
    moved_to: str


def name_of(kind: Kind, step: int) -> str:
    """The name of a checkpoint taken after ``step`` optimizer steps."""
    return f"{kind}_{step:08d}.ckpt"


def step_of(name: str) -> int:
    """The number of optimizer steps in a checkpoint's name or path.

    Raises:
        ValueError: the name is not one of ``name_of``.
    """
    name = name.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a checkpoint of this harness")
    return int(match[2])


class CheckpointFolder:
    """The checkpoints of one run, in a folder or under the URL of an object store.

    Args:
        location: a path, or a URL that fsspec understands.

    Attributes:
        storage: where its files lie.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self.storage = open_storage(self.location)

    def __reduce__(self) -> Any:
        return CheckpointFolder, (self.location,)

    def path(self, name: str) -> str:
        """Path or URL of a checkpoint."""
        return self.storage.path(name)

    def names(self, kind: Kind | None = None) -> list[str]:
        """The names of the checkpoints, those with the most steps last; nothing is said about their content.

        Raises:
            ConfigError: the folder cannot be read. An absent one is empty.
        """
        with readable(self.storage):
            found = [name for name in self.storage.names() if _NAME.fullmatch(name)]
        return sorted((name for name in found if name.startswith(kind or "")), key=lambda name: (step_of(name), name))

    # -- reading -------------------------------------------------------------------------------------------------

    def newest_valid(self) -> tuple[Checkpoint | None, list[Damaged]]:
        """The checkpoint with the most steps of those that are whole; damaged ones before it are set aside.

        Returns:
            The checkpoint, or None if there never was one; and what was set aside.

        Raises:
            ConfigError: there are checkpoints and none of them is whole, or something cannot be read.
        """
        damaged: list[Damaged] = []
        for name in reversed(self.names()):
            with readable(self.storage):
                try:
                    return Checkpoint(self.path(name), self.verified(name)), damaged
                except FileNotFoundError:
                    continue  # removed by its writer since
                except ValueError as error:
                    damaged.append(Damaged(self.path(name), str(error), self._set_damaged_aside(name)))
        with readable(self.storage):
            lost = [self.path(name) for name in self.storage.names() if f".ckpt{_DAMAGED}" in name]
        if lost:
            reasons = "".join(f"\n  {each.path}: {each.reason}" for each in damaged)
            raise ConfigError(
                f"checkpoint.dir={self.location} holds no checkpoint that is whole, and a run that has some must not "
                f"start over by itself: bring back one of {', '.join(sorted(lost))} with its .json, "
                f"or start over with resume=never.{reasons}"
            )
        return None, damaged

    def newest_manifest(self) -> Manifest | None:
        """What the checkpoint with the most steps claims to be; its bytes are not looked at.

        Raises:
            ConfigError: something cannot be read.
        """
        for name in reversed(self.names()):
            with readable(self.storage):
                try:
                    return self._manifest(name)
                except (ValueError, FileNotFoundError):
                    continue
        return None

    def _manifest(self, name: str) -> Manifest:
        return Manifest.from_bytes(self.storage.get(manifest_name(name)))

    def verified(self, name: str) -> Manifest:
        """The manifest that a checkpoint's bytes keep to.

        Raises:
            ValueError: they do not; the message says why.
            OSError: the checkpoint is not there, or cannot be read.
        """
        size = self.storage.size(name)
        try:
            manifest = self._manifest(name)
        except FileNotFoundError:
            raise ValueError("its manifest is missing") from None
        except ValueError:
            raise ValueError("its manifest is damaged") from None
        if size != manifest.size:
            raise ValueError(f"it has {size:,} bytes, and was written with {manifest.size:,}")
        with self.storage.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest != manifest.sha256:
            raise ValueError("its bytes are not those that were written (sha256)")
        return manifest

    def _set_damaged_aside(self, name: str) -> str:
        taken = self.storage.names()
        number = next(n for n in range(len(taken) + 1) if f"{name}{_numbered(n)}" not in taken)
        for each in (name, manifest_name(name)):  # a manifest alone is swept
            with suppress(FileNotFoundError):  # it never was there, or another node was faster
                self.storage.move(each, f"{each}{_numbered(number)}")
        return self.path(f"{name}{_numbered(number)}")

    # -- writing -------------------------------------------------------------------------------------------------

    def write(
        self,
        source: Mapping[str, Any] | Path,
        kind: Kind,
        facts: Facts,
        may_write: Callable[[], bool] = lambda: True,
    ) -> Checkpoint:
        """Put a checkpoint in place, whole or not at all; one of its name that is there and whole stays as it is.

        Args:
            source: the state, or a finished file of it to copy.
            kind: what it is kept for.
            facts: go into the manifest.
            may_write: asked when all is written and nothing is in place yet.

        Raises:
            CheckpointError: it cannot be written. The checkpoints that are there are kept.
            FencedError: the writer is not the current one any more.
        """
        name = name_of(kind, facts.step)
        need = source.stat().st_size if isinstance(source, Path) else tensor_bytes(source)
        with writable(self.storage, name, need):
            if name in self.storage.names():
                try:
                    return Checkpoint(self.path(name), self.verified(name))
                except ValueError:
                    self._set_damaged_aside(name)
            self.check_space(need)
            return self._put(source, name, facts, may_write)

    def _put(
        self, source: Mapping[str, Any] | Path, name: str, facts: Facts, may_write: Callable[[], bool]
    ) -> Checkpoint:
        written: list[HashingWriter] = []

        def fill(file: BinaryIO) -> None:
            written.append(HashingWriter(file))
            write_content(source, written[0])

        with self.storage.stage(name, fill) as checkpoint:
            manifest = Manifest(**vars(facts), size=written[0].size, sha256=written[0].sha256)
            if not may_write():
                raise FencedError(
                    f"{self.path(name)} is not written: it is the state of generation {facts.generation}, and another "
                    "one has taken over."
                )
            self.storage.put(manifest_name(name), manifest.to_bytes())
            checkpoint.publish()
        return Checkpoint(self.path(name), manifest)

    def prune(self, kind: Kind, keep: Collection[str]) -> None:
        """Remove the checkpoints of one kind whose names are not in ``keep``, but never the last good one."""
        names = self.names()
        doomed = [name for name in names if name.startswith(kind) and name not in keep]
        if doomed and not any(self._has_its_size(name) for name in names if name not in doomed):
            last_good = [name for name in doomed if self._has_its_size(name)][-1:]
            doomed = [name for name in doomed if name not in last_good]
        with writable(self.storage, "", 0):
            for name in doomed:
                self.storage.remove(name)
                self.storage.remove(manifest_name(name))

    def _has_its_size(self, name: str) -> bool:
        try:
            return self.storage.size(name) == self._manifest(name).size
        except (OSError, ValueError):
            return False

    def check_space(self, need: int) -> None:
        """See that there is room for so many bytes more.

        Raises:
            CheckpointError: there is not.
        """
        free = self.storage.free_bytes()
        if free is not None and free < need:
            raise CheckpointError(
                f"{self.location} has {free:,} bytes free, and the next checkpoint needs {need:,}: make room there, "
                f"or choose another place with checkpoint.dir=PATH. {KEPT}",
                permanent=True,
            )

    def set_aside(self) -> None:
        """Move all checkpoints, damaged ones too, into ``superseded_<n>``, and nothing else."""
        with writable(self.storage, "", 0):
            own = [name for name in self.storage.names() if re.match(r"(step|best)_\d{8,}\.(ckpt|json)", name)]
            number = 0
            while own and open_storage(self.path(f"superseded_{number}")).names():
                number += 1
            for name in own:
                self.storage.move(name, f"superseded_{number}/{name}")


def manifest_name(name: str) -> str:
    """The name of what lies beside a checkpoint."""
    return f"{name.removesuffix('.ckpt')}.json"


def checkpoint_of(manifest: str) -> str | None:
    """The name of the checkpoint that a manifest belongs to; None for a file that is no manifest."""
    name = f"{manifest.removesuffix('.json')}.ckpt"
    return name if manifest.endswith(".json") and _NAME.fullmatch(name) else None


def _numbered(number: int) -> str:
    return f"{_DAMAGED}_{number}" if number else _DAMAGED
