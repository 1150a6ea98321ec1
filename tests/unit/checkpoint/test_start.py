"""What is checked before any worker starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml

from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.checkpoint.start import check
from elastic_harness.errors import ConfigError
from elastic_harness.run_folder import RunFolder, checkpoints_below


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
