"""Bad input that is only found once torch is there: one clear message, exit code 2, no worker."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import PROJECT, Run


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model._target_=probes.UnpicklableMLP"], ["UnpicklableMLP", "activation_hook", "cannot be sent"]),
        (["model._target_=probes.UnpicklableMLP", "resume=never"], ["cannot be sent"]),
        (["model._target_=probes.NoSuchMLP"], ["model._target_=probes.NoSuchMLP"]),
        (["elastic.nproc_per_node=gpu", "trainer.accelerator=cpu"], ["elastic.nproc_per_node=gpu"]),
        (["elastic.min_nodes=2"], ["elastic.min_nodes=2", "elastic.max_nodes=1"]),
    ],
)
def test_run_when_the_input_is_bad_then_one_message_exit_code_2_and_no_worker(
    start: Callable[..., Run], overrides: list[str], words: list[str]
) -> None:
    run = start(*overrides)
    run.finish(code=2)
    for word in words:
        assert word in run.stderr
    assert "Traceback" not in run.stderr
    assert run.events("generation_started") == []


def test_run_when_the_model_is_unknown_then_the_nearest_names_are_given(start: Callable[..., Run]) -> None:
    run = start("model.name=resnet19", experiment="imagenet_elastic")
    run.finish(code=2)
    assert "model.name=resnet19" in run.stderr
    assert "resnet18" in run.stderr


def test_run_when_the_objective_is_misspelt_then_the_first_epoch_tells_and_is_kept(start: Callable[..., Run]) -> None:
    run = start("objective.metric=val/ac")
    run.finish(code=2)
    assert "objective.metric=val/ac was not logged" in run.stderr
    assert "did you mean val/acc?" in run.stderr
    (saved,) = run.events("checkpoint_saved")
    assert saved["step"] == 12
    run = start("objective.metric=val/acc", "trainer.max_epochs=2")
    run.finish()
    assert run.events("resumed")[0]["step"] == 12


RENAME = ["unshare", "--uts", "--map-root-user", "sh", "-c", 'hostname no-such-name.invalid && exec "$@"', "sh"]


def can_rename_the_machine() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*RENAME, "true"], capture_output=True).returncode == 0


def test_run_when_local_addr_is_not_here_then_exit_code_2_at_once_r11(start: Callable[..., Run]) -> None:
    run = start("rendezvous.local_addr=no-such-name.invalid")
    run.finish(code=2, seconds=60)
    assert "rendezvous.local_addr=no-such-name.invalid must be an address of this machine" in run.stderr
    assert run.events("generation_started") == []


@pytest.mark.skipif(not can_rename_the_machine(), reason="needs unshare, of util-linux, and the right to use it")
@pytest.mark.parametrize("overrides", [[], ["rendezvous.local_addr=127.0.0.1"]], ids=["default", "local_addr"])
def test_run_when_the_machines_name_does_not_resolve_then_it_trains_all_the_same_r11(
    tmp_path: Path, overrides: list[str]
) -> None:
    train = [sys.executable, str(PROJECT / "train.py"), "+experiment=digits_mlp", "elastic.nproc_per_node=2"]
    train += ["trainer.max_epochs=1", f"hydra.run.dir={tmp_path / 'run'}", *overrides]
    done = subprocess.run([*RENAME, *train], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "logs" / "agent_no-such-name.invalid.log").exists()


def test_run_when_something_else_listens_at_the_endpoint_then_it_ends_in_time_and_says_so_r03(
    start: Callable[..., Run],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"rendezvous.endpoint=127.0.0.1:{silent.getsockname()[1]}"
        run = start("elastic.max_nodes=2", "run_id=a", endpoint, "rendezvous.join_timeout=2")
        run.finish(code=144, seconds=60)
    assert "something listens there that is no store of torch; if it is an etcd: rendezvous=etcd" in run.stderr
