from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from elastic_harness.checkpoint import files


def test_names_when_made_then_need_no_quoting_and_can_be_read_back_h01(tmp_path: Path) -> None:
    path = files.path_for(tmp_path, "step", 120)
    assert path.name == "step_00000120.ckpt"
    assert files.step_of(path) == 120
    assert not set("=, ()[]") & set(path.name)
    with pytest.raises(ValueError, match="not the name of a checkpoint"):
        files.step_of(tmp_path / "epoch=3-step=40.ckpt")


def test_newest_when_there_are_several_then_goes_by_step_not_by_time_or_kind(tmp_path: Path) -> None:
    assert files.newest(tmp_path / "absent") is None
    assert files.newest(tmp_path) is None
    for kind, step in (("step", 200), ("best", 120), ("step", 100)):
        files.path_for(tmp_path, kind, step).touch()  # type: ignore[arg-type]
    (tmp_path / "last.ckpt").touch()
    os.utime(tmp_path / "step_00000100.ckpt")
    assert files.newest(tmp_path) == tmp_path / "step_00000200.ckpt"
    files.path_for(tmp_path, "best", 240).touch()
    assert files.newest(tmp_path) == tmp_path / "best_00000240.ckpt"
    files.path_for(tmp_path, "step", 100_000_000).touch()
    assert files.newest(tmp_path) == tmp_path / "step_100000000.ckpt"


def test_write_when_it_fails_then_the_file_under_the_final_name_is_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.path_for(tmp_path, "step", 1)
    files.write({"step": 1}, path)

    def full(checkpoint: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        files.write({"step": 2}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"step": 1}
    files.sweep_partial(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_write_when_target_is_on_another_file_system_then_the_temporary_file_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    folder = tmp_path / "new" / "folder"
    files.write({"step": 1}, files.path_for(folder, "step", 1))
    assert [path.name for path in folder.iterdir()] == ["step_00000001.ckpt"]


def test_prune_when_called_then_removes_only_its_kind(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        files.path_for(tmp_path, "step", step).touch()
        files.path_for(tmp_path, "best", step).touch()
    files.prune(tmp_path, "step", [files.path_for(tmp_path, "step", 3)])
    assert [path.name for path in files.list_checkpoints(tmp_path, "step")] == ["step_00000003.ckpt"]
    assert len(files.list_checkpoints(tmp_path, "best")) == 3
