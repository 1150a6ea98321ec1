"""What the system refuses: a full disk, a right that is missing. The checkpoints that are there stay."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.errors import CheckpointError
from tests.unit.checkpoint.written import entries, newest_step, write


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_write_when_the_disk_fails_then_nothing_is_left_and_the_old_ones_stay_c06(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    before = entries(tmp_path)

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=f"step_00000002.*{os.strerror(number)}") as raised:
        write(folder, 2)
    monkeypatch.undo()
    assert raised.value.permanent is (number == errno.ENOSPC)
    assert entries(tmp_path) == before
    assert newest_step(folder) == 1


def test_write_when_there_is_no_room_then_needed_and_free_bytes_are_named_c06(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path)
    monkeypatch.setattr(folder.storage, "free_bytes", lambda: 7_999)
    with pytest.raises(CheckpointError, match="7,999 bytes free, and the next checkpoint needs 8,000") as raised:
        write(folder, 1)
    assert raised.value.permanent
    assert entries(tmp_path) == []


def as_nobody(action: str, folder: Path) -> str:
    """Run one method of a CheckpointFolder as the user nobody, whom root's rights do not help."""
    code = f"""
import os
import elastic_harness.checkpoint.files as files
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.checkpoint.start import prepare
folder = files.CheckpointFolder({str(folder)!r})
os.setgid(65534); os.setuid(65534)
try:
    print({action})
except Exception as error:
    print(type(error).__name__, error, getattr(error, "permanent", None))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """Root's folder, which others may read; pytest's own temporary folders are closed to them."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write(CheckpointFolder(folder), 1)
        yield Path(folder)


def test_folder_when_it_is_read_only_for_this_user_then_said_before_training_and_at_a_save_c05(
    others_folder: Path,
) -> None:
    before = entries(others_folder)
    assert "ConfigError" in (said := as_nobody("prepare(folder)", others_folder))
    assert "Permission denied" in said
    assert "checkpoint.dir=PATH" in said
    source = others_folder / "step_00000001.ckpt"
    save = f"folder.write(files.Path({str(source)!r}), 'step', Facts(2))"
    assert "CheckpointError" in (said := as_nobody(save, others_folder))
    assert "step_00000002.ckpt cannot be written: Permission denied" in said
    assert said.endswith("True\n")
    assert entries(others_folder) == before


@pytest.mark.parametrize("locked", [".", "step_00000001.ckpt", "step_00000001.json"])
def test_newest_valid_when_it_cannot_be_read_then_that_is_an_error_and_not_an_absence(
    others_folder: Path, locked: str
) -> None:
    (others_folder / locked).chmod(0)
    said = as_nobody("folder.newest_valid()", others_folder)
    assert "ConfigError" in said
    assert "cannot be read (Permission denied)" in said


def test_write_when_a_small_file_system_is_full_then_the_old_one_stays_c06(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        folder = CheckpointFolder(tmp_path)
        big = {"weights": torch.zeros(150_000)}
        folder.write(big, "step", Facts(1))
        with pytest.raises(CheckpointError, match=r"bytes free, and the next checkpoint needs 600,000"):
            folder.write(big, "step", Facts(2))
        with pytest.raises(CheckpointError, match="No space left on device") as raised:
            _without_check(folder, big)
        assert raised.value.permanent
        assert entries(tmp_path) == ["step_00000001.ckpt", "step_00000001.json"]
        assert newest_step(folder) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def _without_check(folder: CheckpointFolder, state: dict[str, Any]) -> None:
    """Write as if the disk had filled up after the space was checked."""
    folder.check_space = lambda need: None  # type: ignore[method-assign]
    folder.write(state, "step", Facts(2))
