from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from elastic_harness import run_folder
from elastic_harness.config import RunConfig, to_dict, to_yaml
from elastic_harness.errors import ConfigError
from elastic_harness.result import Result
from elastic_harness.run_folder import RunFolder, hold_lock


def result(status: str) -> Result:
    return Result(status, None, 10, 1, {"val/acc": 0.9}, "ab", 1, 0, 0, 0, [2], 1.0)


def config(tmp_path: Path, **trainer: Any) -> RunConfig:
    return RunConfig(run_id="a", run_dir=str(tmp_path), experiment=None, trainer=trainer)


def hold(path: Path, pipe: Connection) -> None:
    with RunFolder(path).in_use():
        pipe.send(None)
        pipe.recv()  # until it is told to go on


def work(path: Path, pipe: Connection) -> None:
    hold_lock(str(RunFolder(path).workers_lock))
    pipe.send(None)
    pipe.recv()


def test_in_use_when_another_process_holds_the_folder_then_waits_for_it_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = multiprocessing.Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, theirs))
    holder.start()
    ours.recv()
    monkeypatch.setattr(time, "sleep", lambda _: ours.send(None))  # it waits: now the other may end
    with RunFolder(tmp_path).in_use():
        assert (tmp_path / ".lock").read_text() != str(holder.pid)
    holder.join()
    assert holder.exitcode == 0


def test_in_use_when_the_other_process_stays_then_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.2)
    ours, theirs = multiprocessing.Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, theirs))
    holder.start()
    ours.recv()
    try:
        with pytest.raises(ConfigError, match=f"in use by process {holder.pid}"), RunFolder(tmp_path).in_use():
            pass
    finally:
        holder.kill()
        holder.join()


def test_in_use_when_the_folder_cannot_be_made_then_the_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"run folder .*cannot be written.*hydra\.run\.dir=PATH"),
        RunFolder(tmp_path / "file").in_use(),
    ):
        pass


def test_next_generation_when_logs_are_there_then_is_one_more_than_the_highest(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.next_generation() == 0
    folder.log_folder(0)
    folder.log_folder(10)
    (tmp_path / "logs" / "generation_x").mkdir()
    assert folder.next_generation() == 11


@pytest.mark.parametrize(
    ("status", "asked", "resume", "done"),
    [
        ("finished", {"max_epochs": 3}, "auto", True),
        ("finished", {"max_epochs": 4}, "auto", False),
        ("finished", {"max_epochs": 3, "max_steps": 5}, "auto", False),
        ("finished", {"max_epochs": 3}, "never", False),
        ("failed", {"max_epochs": 3}, "auto", False),
        ("preempted", {"max_epochs": 3}, "auto", False),
    ],
)
def test_finished_when_result_and_length_fit_then_the_result_is_given(
    tmp_path: Path, status: str, asked: dict[str, int], resume: str, done: bool
) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(to_yaml(config(tmp_path, max_epochs=3)))
    assert folder.recorded("elastic")["min_nodes"] == 1
    folder.write_result(result(status))
    found = folder.finished(resume, to_dict(config(tmp_path, **asked)))
    assert (found is not None) is done
    if found:
        assert found["metrics"] == {"val/acc": 0.9}


def test_finished_when_it_was_another_experiment_then_its_result_is_not_this_ones(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path), config(tmp_path, max_epochs=3)
    folder.begin(to_yaml(config(tmp_path, max_epochs=3)))
    folder.write_result(result("finished"))
    other.seed = 7
    with pytest.raises(ConfigError, match=r"of another experiment:\n  seed: 42 -> 7"):
        folder.finished("auto", to_dict(other))
    assert folder.finished("force", to_dict(other)) is not None


@pytest.mark.parametrize("name", ["result.json", "config.yaml"])
@pytest.mark.parametrize("content", [b"{garb", b"[]", b"hello", b"\xff\xfe", b""])
def test_finished_when_a_file_is_damaged_then_the_checkpoints_decide(tmp_path: Path, name: str, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(to_yaml(config(tmp_path, max_epochs=3)))
    folder.write_result(result("finished"))
    (tmp_path / name).write_bytes(content)
    assert folder.finished("auto", to_dict(config(tmp_path, max_epochs=3))) is None
    folder.begin(to_yaml(config(tmp_path, max_epochs=3)))


def test_finished_when_the_folder_is_empty_then_it_is_not(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).finished("auto", to_dict(config(tmp_path))) is None


def test_set_aside_when_called_twice_then_both_runs_are_kept_and_foreign_files_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "precious.txt").touch()
    with folder.in_use():
        for number in range(2):
            folder.write_result(result("failed"))
            folder.set_aside()
            assert (tmp_path / f"superseded_{number}" / "result.json").exists()
        folder.set_aside()
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == [".lock", ".workers.lock", "precious.txt", "superseded_0", "superseded_1"]


def test_begin_when_an_earlier_start_finished_then_its_result_is_void_and_changes_are_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.begin("trainer:\n  max_epochs: 3\n") == []
    folder.write_result(result("finished"))
    assert folder.begin("trainer:\n  max_epochs: 4\n") == ["-   max_epochs: 3", "+   max_epochs: 4"]
    assert folder.finished("auto", to_dict(config(tmp_path, max_epochs=4))) is None
    assert folder.begin("trainer:\n  max_epochs: 4\n") == []


def test_in_use_when_a_worker_of_a_killed_agent_is_left_then_waits_for_it_p02(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.2)
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(tmp_path, theirs))
    worker.start()
    ours.recv()
    try:
        with pytest.raises(ConfigError, match="or a worker"), RunFolder(tmp_path).in_use():
            pass
    finally:
        worker.kill()
        worker.join()
    with RunFolder(tmp_path).in_use():
        pass


def test_in_use_when_nodes_share_the_folder_then_only_the_first_begins_and_one_process_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.2)
    one, two, three = (RunFolder(tmp_path, node=name) for name in ("one", "two", "three"))
    with one.in_use():
        one.begin("trainer:\n  max_epochs: 3\n")
        with pytest.raises(ConfigError, match="in use"), two.in_use():
            pass  # the first one has not begun
        one.admit_others()
        with two.in_use(), three.in_use():
            assert (one.first, two.first, three.first) == (True, False, False)
            two.begin("trainer:\n  max_epochs: 4\n")
            two.set_aside()
            assert one.recorded("trainer") == {"max_epochs": 3}
        with pytest.raises(ConfigError, match="in use by process"), RunFolder(tmp_path, node="one").in_use():
            pass
        with pytest.raises(ConfigError, match="in use"), RunFolder(tmp_path).in_use():
            pass
    with RunFolder(tmp_path).in_use(), pytest.raises(ConfigError, match=r"elastic.max_nodes=1"), two.in_use():
        pass
