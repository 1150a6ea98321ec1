"""Runs whose checkpoints are damaged, cannot be written, are another experiment's, or lie elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from elastic_harness.checkpoint.files import CheckpointFolder
from tests.integration.conftest import Run


def test_run_when_its_newest_checkpoint_is_damaged_then_the_one_before_is_used_and_with_none_it_refuses_c04(
    start: Callable[..., Run],
) -> None:
    run = start("trainer.max_epochs=5")
    run.finish()
    checkpoints = run.folder / "checkpoints"
    *_, before, newest = CheckpointFolder(checkpoints).names()
    content = bytearray((checkpoints / newest).read_bytes())
    content[len(content) // 3] ^= 4
    (checkpoints / newest).write_bytes(content)

    again = start("trainer.max_epochs=6", "restart.max_restarts=0")
    again.finish()
    (aside,) = again.events("checkpoint_set_aside")
    assert aside["checkpoint"] == str(checkpoints / newest)
    assert f"{newest} is damaged" in again.stdout
    assert again.events("resumed")[0]["checkpoint"] == str(checkpoints / before)
    assert (again.result["status"], again.result["restarts"], again.result["step"]) == ("finished", 0, 72)

    for name in CheckpointFolder(checkpoints).names():
        os.truncate(checkpoints / name, 100)
    for _ in range(2):
        refused = start("trainer.max_epochs=7")
        refused.finish(code=2)
        assert "holds no checkpoint that is whole" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert refused.result["step"] == 72
    assert refused.result["restarts"] == 0


def test_run_when_it_would_go_on_as_another_experiment_then_no_worker_starts_unless_forced_c14(
    start: Callable[..., Run],
) -> None:
    run = start("trainer.max_epochs=2", "optimizer.lr=0.1")
    run.finish()
    changed = ("trainer.max_epochs=3", "optimizer.lr=0.2")
    refused = start(*changed)
    refused.finish(code=2)
    assert "optimizer.lr: 0.1 -> 0.2" in refused.stderr
    assert len(run.events("generation_started")) == 1
    assert run.result["status"] == "finished"
    forced = start(*changed, "resume=force")
    forced.finish()
    assert forced.events("resumed")[0]["step"] == 24
    assert forced.result["step"] == 36


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for a checkpoint of the digits recipe and a half, about 90 kB each."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_run_when_the_disk_has_no_room_for_two_then_one_is_kept_and_it_is_not_retried_c06(
    start: Callable[..., Run], small_disk: Path
) -> None:
    run = start(f"checkpoint.dir={small_disk}")
    run.finish(code=1)
    assert "bytes free, and the next checkpoint needs" in run.stderr
    assert str(small_disk) in run.stderr
    assert len(run.events("generation_started")) == 1
    (folder,) = small_disk.glob("*/run")
    found, damaged = CheckpointFolder(folder).newest_valid()
    assert found is not None
    (saved,) = run.events("checkpoint_saved")
    assert found.manifest.step == saved["step"]
    assert damaged == []


def test_run_when_hyperparameters_hold_a_configuration_then_it_resumes_and_a_function_is_refused_c12(
    start: Callable[..., Run],
) -> None:
    configured = ("model._target_=hyperparameters.ConfiguredMLP", "trainer.max_epochs=25")
    run = start(*configured)
    run.wait_for_checkpoint(40)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.finish()
    assert run.events("resumed")[0]["step"] >= 40
    refused = start(*configured, "+model.factory=true", "resume=never")
    refused.finish(code=2)
    assert "hyper_parameters.optimizer in the checkpoint is a functools.partial" in refused.stderr
    assert 'save_hyperparameters(ignore=["optimizer"])' in refused.stderr


def test_sweep_when_its_jobs_have_one_checkpoint_dir_then_they_do_not_mix(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    shared, sweep = tmp_path / "shared", tmp_path / "sweep"
    run = start("-m", f"hydra.sweep.dir={sweep}", "seed=1,2", "trainer.max_epochs=1", f"checkpoint.dir={shared}")
    run.finish()
    for job, seed in enumerate((1, 2)):
        found, _ = CheckpointFolder(shared / tmp_path.name / "sweep" / str(job)).newest_valid()
        assert found is not None
        assert found.manifest.fingerprint["seed"] == seed
        assert not (sweep / str(job) / "checkpoints").exists()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("s3://bucket")
    yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_run_when_its_checkpoints_are_in_s3_then_it_goes_on_from_there_without_its_folder(
    start: Callable[..., Run], bucket: str, tmp_path: Path
) -> None:
    place = ("trainer.max_epochs=25", f"checkpoint.dir={bucket}/checkpoints")
    run = start(*place)
    run.wait_for_checkpoint(40)
    run.process.send_signal(signal.SIGTERM)
    run.finish(code=143)
    run.folder.rename(tmp_path / "lost")
    again = start(*place)
    again.finish()
    (resumed,) = again.events("resumed")
    assert resumed["step"] >= 40
    assert resumed["checkpoint"].startswith(f"{bucket}/checkpoints/{tmp_path.name}/run/step_")
    folder = CheckpointFolder(resumed["checkpoint"].rpartition("/")[0])
    found, _ = folder.newest_valid()
    assert found is not None
    assert found.manifest.step == 300
    assert len(folder.names("step")) == 2
