"""Where checkpoint files lie: a local folder, or the prefix of an object store by way of fsspec.

Both put a file under its name whole or not at all. ``open_storage`` chooses. torch is not imported here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from elastic_harness.errors import CheckpointError, ConfigError

Fill = Callable[[BinaryIO], object]
"""Writes the content of a file into it."""

KEPT = "The checkpoints that are there are kept, and the same command goes on from the newest."
# Errors that another try does not make good.
_PERMANENT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial")


class Staged(Protocol):
    """A whole file that is not under its name yet."""

    def publish(self) -> None:
        """Put it under its name."""


class Storage(Protocol):
    """A flat folder of files. What cannot be read or written raises OSError; an absent folder is an empty one."""

    def names(self) -> list[str]:
        """The names of the files in it."""

    def path(self, name: str) -> str:
        """Path or URL of a file, as a user would type it."""

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """The file, to read."""

    def get(self, name: str) -> bytes:
        """The content of a small file."""
        with self.open(name) as file:
            return file.read()

    def stage(self, name: str, fill: Fill) -> contextlib.AbstractContextManager[Staged]:
        """Write the file; it appears under its name when it is published, and is gone if it never is."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        with self.stage(name, lambda file: file.write(data)) as staged:
            staged.publish()

    def move(self, name: str, to: str) -> None:
        """Give a file another name; ``to`` may lie in a subfolder."""

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""

    def free_bytes(self) -> int | None:
        """Room for more; None if there is no limit to know of."""

    def sweep(self) -> set[str]:
        """Remove what was staged by a process that ended; the names that one which lives is writing."""


def open_storage(location: str) -> Storage:
    """The storage behind a plain path, a ``file://`` URL or any other URL that fsspec understands.

    Raises:
        ImportError: fsspec needs another package for it.
        ValueError: fsspec does not know the protocol.
    """
    if location.startswith("file://"):
        return LocalFolder(Path(location.removeprefix("file://")))
    return ObjectPrefix(location) if "://" in location else LocalFolder(Path(location))


@contextlib.contextmanager
def readable(storage: Storage) -> Iterator[None]:
    """What cannot be read becomes a ConfigError; that a file is not there is for the caller to judge."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(
            f"checkpoint.dir: {storage.path('')} cannot be read ({error.strerror or error}), so it is not known where "
            "the run stands: give this user the right to read and write there, or see to the file system."
        ) from error


@contextlib.contextmanager
def writable(storage: Storage, name: str, need: int) -> Iterator[None]:
    """What cannot be written becomes a CheckpointError.

    Args:
        storage: where to.
        name: what is written.
        need: its bytes.
    """
    try:
        yield
    except OSError as error:
        room = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            room = f" (needed: {need:,} bytes, free: {storage.free_bytes() or 0:,})"
        raise CheckpointError(
            f"{storage.path(name)} cannot be written: {error.strerror or error}{room}. Give this user room and the "
            f"right to write there, or choose another place with checkpoint.dir=PATH. {KEPT}",
            permanent=error.errno in _PERMANENT,
        ) from error


class LocalFolder(Storage):
    """A folder of a file system with an atomic rename.

    Args:
        folder: made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def path(self, name: str) -> str:
        return str(self._folder / name)

    def size(self, name: str) -> int:
        return (self._folder / name).stat().st_size

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with (self._folder / name).open("rb") as file:
            yield file

    @contextlib.contextmanager
    def stage(self, name: str, fill: Fill) -> Iterator[Staged]:
        self._folder.mkdir(parents=True, exist_ok=True)
        # In the same folder, since a rename between file systems is a copy; a name of its own, since a writer that
        # was given up may still be writing.
        partial = self._folder / f".{name}.{secrets.token_hex(4)}.partial"
        try:
            with partial.open("xb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # says that its writer lives
                fill(file)
                file.flush()
                os.fsync(file.fileno())
                yield _StagedHere(partial, self._folder / name)
        finally:
            partial.unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        target = self._folder / to
        target.parent.mkdir(exist_ok=True)
        (self._folder / name).rename(target)
        _sync(target.parent)
        _sync(self._folder)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        folder = self._folder
        while not folder.exists():
            folder = folder.parent
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def sweep(self) -> set[str]:
        being_written = set()
        for name in self.names():
            if match := _PARTIAL.fullmatch(name):
                try:
                    with (self._folder / name).open("rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self.remove(name)
                except (BlockingIOError, FileNotFoundError):
                    being_written.add(match[1])
        return being_written


class _StagedHere:
    def __init__(self, partial: Path, target: Path) -> None:
        self._partial = partial
        self._target = target

    def publish(self) -> None:
        self._partial.rename(self._target)
        _sync(self._target.parent)


class ObjectPrefix(Storage):
    """A prefix of an object store.

    There is no atomic rename; what gives atomicity is that an object appears when its upload is complete, and not
    before. What is staged is a local file until then.

    Args:
        url: the prefix, such as ``s3://bucket/checkpoints``.
    """

    def __init__(self, url: str) -> None:
        import fsspec  # here, since most runs write to a folder

        self._url = url.rstrip("/")
        self._files, self._root = fsspec.core.url_to_fs(self._url)

    def names(self) -> list[str]:
        with _as_os_error():
            self._files.invalidate_cache()  # another process may have written
            try:
                entries = self._files.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return [entry["name"].rpartition("/")[2] for entry in entries if entry["type"] == "file"]

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def size(self, name: str) -> int:
        with _as_os_error():
            return int(self._files.size(f"{self._root}/{name}"))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with _as_os_error(), self._files.open(f"{self._root}/{name}", "rb") as file:
            yield file

    @contextlib.contextmanager
    def stage(self, name: str, fill: Fill) -> Iterator[Staged]:
        with tempfile.NamedTemporaryFile() as file:
            fill(file)  # type: ignore[arg-type]
            file.flush()
            yield _StagedThere(self._files, file.name, f"{self._root}/{name}")

    def move(self, name: str, to: str) -> None:
        with _as_os_error():
            self._files.cp_file(f"{self._root}/{name}", f"{self._root}/{to}")
        self.remove(name)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), _as_os_error():
            self._files.rm_file(f"{self._root}/{name}")

    def free_bytes(self) -> int | None:
        return None

    def sweep(self) -> set[str]:
        # An upload that was cut short left no object. Who else is uploading cannot be seen, so nothing is removed.
        return set(self.names())


class _StagedThere:
    def __init__(self, files: Any, local: str, target: str) -> None:
        self._files = files
        self._local = local
        self._target = target

    def publish(self) -> None:
        with _as_os_error():
            self._files.put_file(self._local, self._target)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """What clients of object stores raise has no common type."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
