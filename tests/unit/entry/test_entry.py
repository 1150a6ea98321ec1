"""The wrapper around train.py: endings, messages, folders."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_harness.entry import new_run_id

PROJECT = Path(__file__).parents[3]
SCRIPT = """
import signal, sys
from elastic_harness.entry import hydra_entry, parse_job
from elastic_harness.errors import *

@hydra_entry
def train(cfg):
    run = parse_job(cfg)
    ran.append(run)
    {body}

ran = []
"""
Start = Callable[..., tuple[int, str, list[Any]]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: Any, capsys: Any) -> Start:
    """Run a train.py with this body in a project of its own; exit code, stderr, and the runs it got to."""

    def start(body: str, *arguments: str) -> tuple[int, str, list[Any]]:
        project = tmp_path / "project"
        if not project.exists():
            shutil.copytree(PROJECT / "conf", project / "conf")
            shutil.copytree(PROJECT / "recipes", project / "recipes")
        (project / "train.py").write_text(SCRIPT.format(body=body))
        spec = importlib.util.spec_from_file_location("train_under_test", project / "train.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        monkeypatch.chdir(work)
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        with pytest.raises(SystemExit) as raised:
            module.train()
        assert isinstance(raised.value.code, int)
        return raised.value.code, capsys.readouterr().err, module.ran

    return start


def test_entry_when_the_job_finishes_then_the_run_folder_is_where_the_user_is(start: Start, tmp_path: Path) -> None:
    code, err, (run,) = start("return 0.5", "+experiment=digits_mlp", "run_id=night1", "trainer.max_epochs=7")
    assert (code, err) == (0, "")
    assert run.run_dir == str(tmp_path / "work" / "runs" / "digits_mlp" / "night1")
    assert (run.experiment, run.run_id, run.trainer["max_epochs"]) == ("digits_mlp", "night1", 7)
    assert run.logger["save_dir"] == run.run_dir


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("raise ConfigError(['a=1 is wrong.', 'b=2 is wrong.'])", 2, "- a=1 is wrong.\n- b=2 is wrong.\n"),
        ("raise TrainingFailed('budget spent (2 of 2)')", 1, "budget spent (2 of 2)\n"),
        ("raise ClusterError('the store is gone')", 144, "the store is gone\n"),
        ("raise Stopped(signal.SIGTERM)", 143, ""),
        ("raise Stopped(signal.SIGHUP)", 129, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("sys.exit(7)", 7, ""),
    ],
)
def test_entry_when_a_job_ends_then_the_exit_code_says_how(start: Start, body: str, code: int, words: str) -> None:
    assert start(body, "+experiment=digits_mlp")[:2] == (code, words)


def test_entry_when_a_job_has_a_bug_then_its_traceback_is_shown(start: Start) -> None:
    code, err, _ = start("raise RuntimeError('a bug')", "+experiment=digits_mlp")
    assert code == 1
    assert "Traceback" in err
    assert "RuntimeError: a bug" in err
    assert "hydra/_internal" not in err


def test_entry_when_the_input_is_bad_then_no_empty_folder_is_left(start: Start, tmp_path: Path) -> None:
    assert start("pass", "+experiment=digits_mlp", "seed=-1")[0] == 2
    assert not (tmp_path / "work" / "runs").exists()


def test_entry_when_the_input_is_bad_then_older_folders_stay(start: Start, tmp_path: Path) -> None:
    old = tmp_path / "work" / "runs" / "digits_mlp" / "old"
    old.mkdir(parents=True)
    assert start("pass", "+experiment=digits_mlp", "seed=-1")[0] == 2
    assert start("pass", "+experiment=digits_mlp", "seed=-1", "run_id=old")[0] == 2
    assert list(old.parent.iterdir()) == [old]


def test_entry_when_hydra_runs_then_the_environment_is_left_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # the one that is set for good
    before = dict(os.environ)
    body = "import os; assert 'HYDRA_FULL_ERROR' not in os.environ"
    assert start(body, "+experiment=digits_mlp")[0] == 0
    assert dict(os.environ) == before


def test_sweep_when_a_job_fails_then_the_others_run_and_its_message_names_it_h07(start: Start) -> None:
    body = "assert run.seed != 2, 'seed two'"
    code, err, ran = start(body, "-m", "+experiment=digits_mlp", "seed=1,2,3", "run_id=sweep")
    assert code == 1
    assert [(run.run_id, Path(run.run_dir).name) for run in ran] == [
        ("sweep", "0"),
        ("sweep", "1"),
        ("sweep", "2"),
    ]
    assert "Job 1: +experiment=digits_mlp seed=2" in err
    assert "Job 1 failed with exit code 1." in err
    assert "hydra/_internal" not in err


def test_sweep_when_a_job_exits_then_the_others_run_h07(start: Start) -> None:
    code, _, ran = start("if run.seed == 1: sys.exit(7)", "-m", "+experiment=digits_mlp", "seed=1,2")
    assert (code, len(ran)) == (7, 2)


def test_sweep_when_stopped_then_it_ends(start: Start) -> None:
    code, _, ran = start("raise Stopped(signal.SIGINT)", "-m", "+experiment=digits_mlp", "seed=1,2")
    assert (code, len(ran)) == (130, 1)


def test_sweep_when_a_value_is_bad_then_the_exit_code_is_two(start: Start) -> None:
    code, err, ran = start("pass", "-m", "+experiment=digits_mlp", "seed=1,-1")
    assert (code, len(ran)) == (2, 1)
    assert "seed=-1 must be between" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["+experiment=digit_mlp"], "+experiment=digit_mlp does not exist: did you mean digits_mlp? Experiments: "),
        (["experiment=digits_mlp"], "write +experiment=digits_mlp"),
        (["+experiment=digits_mlp", "resume=a=b"], "needs both quotes, 'resume=\"a=b\"'"),
        (["+experiment=digits_mlp", "elastic.min_node=2"], "did you mean min_nodes?"),
        (["+experiment=digits_mlp", "batch_size=2"], "did you mean data.batch_size?"),
        (["+experiment=digits_mlp", "optimizer.betas=[1,2]"], "write +optimizer.betas=[1,2]"),
        (["+experiment=digits_mlp", "+seed=3"], "write seed=3"),
        (["+experiment=digits_mlp", "seed=1,2"], "add -m to sweep over 1,2"),
        (["+experiment=digits_mlp", "restart=nevr"], "did you mean never? Options: exit_code, never, on_failure."),
        (["+experiment=digits_mlp", "logger=null"], "leave a group out with ~logger"),
        (["+experiment=digits_mlp", "elastic=[1,2]"], "must name one option of the group"),
        (["+experiment=digits_mlp", "hydra.run.dir=/dev/null/x"], "hydra.run.dir=/dev/null/x cannot be made"),
        ([], "nothing to train is chosen: add an experiment"),
    ],
)
def test_entry_when_the_command_line_is_wrong_then_the_fix_is_given_h01_h02(
    start: Start, arguments: list[str], words: str
) -> None:
    code, err, ran = start("pass", *arguments)
    assert (code, ran) == (2, [])
    assert words in err
    assert "Traceback" not in err


def test_entry_when_several_overrides_are_wrong_then_all_are_listed(start: Start) -> None:
    wrong = ["resume=a=b", "restart=nevr", "elastic.min_node=2", "+elastic.typo=1", "seed=-1", "+model.hiden=3"]
    code, err, _ = start("pass", "+experiment=digits_mlp", *wrong)
    assert code == 2
    assert err.count("\n- ") + 1 == 5  # All but model.hiden, which is for check_targets to find.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainer:\n  max_epochs: 3\n", "experiment/copy.yaml begin with the line `# @package _global_`"),
        ("defaults:\n  - override /optimizer: sgd\n", "let the file begin with the line `# @package _global_`"),
        ("# @package _global_\ndefaults:\n  - /optimizer: sgd\n", "write `override /optimizer: OPTION`"),
        ("# @package _global_\ndefaults:\n  - override /optimzer: sgd\n", "did you mean optimizer?"),
        ("# @package _global_\ndefaults:\n  - override /optimizer: sdg\n", "did you mean sgd?"),
        ("# @package _global_\nelastic: [1\nseed: 2\n", "is not valid YAML at line 3"),
        ("# @package _global_\nelastic:\n  max_nodes: 1:4\n", "min_nodes: 1 and max_nodes: 4"),
    ],
)
def test_entry_when_a_copied_experiment_is_broken_then_file_and_fix_are_named_h02_r10(
    start: Start, tmp_path: Path, text: str, words: str
) -> None:
    start("pass", "+experiment=digits_mlp")  # Makes the project.
    file = tmp_path / "project" / "conf" / "experiment" / "copy.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    code, err, ran = start("pass", "+experiment=copy")
    assert (code, ran) == (2, [])
    assert words in err
    assert "copy" in err


def test_new_run_id_when_asked_twice_in_a_second_then_the_ids_differ() -> None:
    assert len({new_run_id() for _ in range(100)}) == 100
