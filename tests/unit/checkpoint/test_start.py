"""What is checked before any worker starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml

from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.checkpoint.start import check, prepare
from elastic_harness.errors import ConfigError
from elastic_harness.run_folder import RunFolder, checkpoints_below
from tests.unit.checkpoint.written import STATE, entries, newest_step, write


def start(folder: RunFolder, resume: str = "auto", seed: int = 42) -> dict[str, object]:
    return check(folder, pl.LightningModule(), yaml.safe_dump({"seed": seed}), resume)


def test_check_when_the_checkpoints_are_of_another_experiment_then_it_must_be_forced_c14(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    fingerprint = start(folder)
    folder.checkpoints.write({}, "step", Facts(1, fingerprint=fingerprint))
    assert start(folder) == {"seed": 42}
    with pytest.raises(ConfigError, match="seed: 42 -> 43"):
        start(folder, seed=43)
    assert start(folder, "force", seed=43) == {"seed": 43}
    assert start(folder, "never", seed=43) == {"seed": 43}


def test_check_when_given_a_path_then_only_its_bytes_are_compared(tmp_path: Path) -> None:
    other, folder = RunFolder(tmp_path / "other"), RunFolder(tmp_path / "run")
    written = other.checkpoints.write({"a": 1}, "step", Facts(1, fingerprint={"seed": 1}))
    start(folder, written.path)
    foreign = tmp_path / "epoch=3.ckpt"
    shutil.copy(written.path, foreign)
    start(folder, str(foreign))
    Path(written.path).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"resume=.*step_00000001\.ckpt is damaged"):
        start(folder, written.path)


@pytest.mark.parametrize(
    ("run_folder", "place"),
    [
        ("/x/runs/imagenet_elastic/night1", "imagenet_elastic/night1"),
        ("/x/runs/digits_mlp/2026-01-01_a/0", "digits_mlp/2026-01-01_a/0"),
        ("/elastic", "elastic"),
    ],
)
def test_checkpoint_dir_when_shared_then_each_run_and_each_job_has_a_place_of_its_own(
    run_folder: str, place: str
) -> None:
    assert checkpoints_below("s3://bucket/a/", Path(run_folder)) == f"s3://bucket/a/{place}"
    assert checkpoints_below("a", Path(run_folder)) == str(Path("a").absolute() / place)


def test_checkpoint_dir_when_two_runs_have_the_same_names_then_the_second_is_refused(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    first, second = (RunFolder(tmp_path / home / "runs" / "a", shared) for home in ("one", "two"))
    for folder in (first, second):
        folder.path.mkdir(parents=True)
    assert first.checkpoints.location == second.checkpoints.location
    start(first)
    start(first)
    for resume in ("auto", "never"):
        with pytest.raises(ConfigError, match=f"the run in {first.path}, not those of {second.path}"):
            start(second, resume)
    start(second, "force")
    with pytest.raises(ConfigError, match=r"checkpoint\.dir"):
        start(first)
    second.path.rmdir()  # a run whose folder was moved, or is on another machine, goes on
    start(first)


def test_set_aside_when_checkpoints_are_elsewhere_then_they_are_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", str(tmp_path / "shared"))
    folder.path.mkdir()
    for number in range(2):
        folder.checkpoints.write({}, "step", Facts(1))
        folder.set_aside()
        assert (Path(folder.checkpoints.location) / f"superseded_{number}" / "step_00000001.ckpt").exists()
    assert folder.checkpoints.newest_valid() == (None, [])


def test_prepare_when_a_write_was_cut_short_then_its_leftovers_go_and_nothing_else_c03(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    (tmp_path / ".step_00000002.ckpt.0123abcd.partial").write_bytes(b"half")
    (tmp_path / "step_00000002.json").write_bytes(b"{}")
    for name in ("hparams.json", "my.ckpt", "step_1.json", ".precious.partial"):
        (tmp_path / name).touch()
    prepare(folder)
    kept = [".precious.partial", "hparams.json", "my.ckpt", "step_00000001.ckpt", "step_00000001.json", "step_1.json"]
    assert entries(tmp_path) == kept


def test_prepare_when_another_process_is_writing_then_its_files_stay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)

    def other_starts() -> bool:
        (tmp_path / "step_00000001.json").touch()  # the moment between manifest and checkpoint
        prepare(CheckpointFolder(tmp_path))
        return True

    folder.write(STATE, "step", Facts(1), other_starts)
    assert entries(tmp_path) == ["step_00000001.ckpt", "step_00000001.json"]
    assert newest_step(folder) == 1


def test_prepare_when_there_is_no_room_for_another_one_then_it_says_so_c06(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    size = (tmp_path / "step_00000001.ckpt").stat().st_size
    monkeypatch.setattr(folder.storage, "free_bytes", lambda: size - 1)
    with pytest.raises(ConfigError, match=f"{size - 1:,} bytes free, and the next checkpoint needs {size:,}"):
        prepare(folder)
