"""Where states are kept between a worker and a checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from elastic_harness.checkpoint import node_memory
from elastic_harness.checkpoint.node_memory import NodeMemory, step_of, write_state
from elastic_harness.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(node_memory, "_SHARED_MEMORY", folder)
    return folder


def memory_of(run_folder: Path, weights: int = 0) -> NodeMemory:
    return NodeMemory(run_folder, weights, run_folder / ".states")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_memory_when_a_run_is_started_again_then_has_its_states(run_folder: Path, shared_memory: Path) -> None:
    memory = memory_of(run_folder)
    for step in (7, 12):
        write_state({"step": step}, step, memory.places)
    newest = memory_of(run_folder).newest()
    assert newest is not None
    assert (step_of(newest), newest.parent.parent) == (12, shared_memory)
    memory.drop_before(12)
    assert [step_of(path) for path in memory.path.glob("*.ckpt")] == [12]


def test_memory_when_the_run_folder_was_made_anew_then_is_another_and_the_old_one_is_freed(run_folder: Path) -> None:
    before = memory_of(run_folder)
    write_state({}, 7, before.places)
    shutil.rmtree(run_folder)
    run_folder.mkdir()
    assert memory_of(run_folder).newest() is None
    assert before.path.exists(), "an agent holds it"
    before.release()
    memory_of(run_folder)
    assert not before.path.exists()


def test_memory_when_there_is_little_of_it_then_the_run_folder_takes_the_states(run_folder: Path) -> None:
    assert memory_of(run_folder, 1 << 60).path == run_folder / ".states"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_memory_when_its_name_is_taken_then_the_run_folder_takes_the_states(
    run_folder: Path, shared_memory: Path, kind: str
) -> None:
    memory = memory_of(run_folder)
    memory.drop()
    if kind == "link":
        memory.path.symlink_to(shared_memory.parent)
    else:
        memory.path.touch()
    assert memory_of(run_folder).path == run_folder / ".states"
    assert os.path.lexists(memory.path)


def test_memory_when_its_states_are_those_of_another_experiment_then_it_refuses_unless_forced_c14(
    run_folder: Path,
) -> None:
    memory = memory_of(run_folder)
    memory.require({"seed": 1}, force=False)
    memory.require({"seed": 2}, force=False)  # there is no state yet
    write_state({}, 7, memory.places)
    with pytest.raises(ConfigError, match="seed: 2 -> 3"):
        memory.require({"seed": 3}, force=False)
    memory.require({"seed": 3}, force=True)
    memory.require({"seed": 3}, force=False)


def test_write_state_when_the_first_place_is_full_then_the_next_one_takes_it(
    run_folder: Path, shared_memory: Path
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(shared_memory)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        memory = memory_of(run_folder)
        assert memory.path.parent == shared_memory
        state = {"weights": torch.ones(100_000)}
        path = write_state(state, 7, memory.places)
        assert path.parent == run_folder / ".states"
        assert memory.newest() == path
        with pytest.raises(CheckpointError, match=r"after step 8 cannot be put into .*: free room there") as raised:
            write_state(state, 8, [memory.path])
        assert raised.value.permanent
        assert list(memory.path.glob("state_*")) == [], "nothing half written is left"
        memory.drop()
    finally:
        subprocess.run(["umount", str(shared_memory)], check=True)
