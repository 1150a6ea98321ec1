"""``elastic-harness list``, ``new`` and ``doctor``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from elastic_harness.cli import main

PROJECT = Path(__file__).parents[2]


def test_list_when_called_below_a_project_then_its_experiments_are_listed(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(PROJECT / "recipes" / "digits_mlp")
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "digits_mlp (recipe digits_mlp)\n    python train.py +experiment=digits_mlp\n" in out


def test_list_when_called_outside_a_project_then_it_says_so(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 2
    assert "not inside a project" in capsys.readouterr().err


def test_cli_when_called_without_a_command_then_the_usage_is_shown(capsys: Any) -> None:
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "list" in capsys.readouterr().err


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Any) -> Path:
    """A project with this one's recipes."""
    (tmp_path / "train.py").touch()
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "taken.yaml").touch()
    shutil.copytree(PROJECT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_when_called_then_the_copy_is_a_recipe_of_its_own(project: Path, capsys: Any) -> None:
    assert main(["new", "my_model"]) == 0
    assert "python train.py +experiment=my_model" in capsys.readouterr().out
    yaml = (project / "recipes" / "my_model" / "experiment" / "my_model.yaml").read_text()
    assert yaml == (PROJECT / "recipes/digits_mlp/experiment/digits_mlp.yaml").read_text().replace(
        "digits_mlp", "my_model"
    )
    module = (project / "recipes" / "my_model" / "module.py").read_text()
    assert "class DigitsMLP" in module
    assert "digits_mlp" not in module
    names = sorted(path.name for path in (project / "recipes" / "my_model").iterdir())
    assert names == ["__init__.py", "experiment", "module.py"]
    assert main(["new", "another", "--from", "my_model"]) == 0


def test_new_when_a_recipe_cannot_be_copied_then_says_why_and_leaves_nothing(project: Path, capsys: Any) -> None:
    broken = project / "recipes" / "broken"
    (broken / "experiment").mkdir(parents=True)
    (broken / "experiment" / "broken.yaml").touch()
    (broken / "module.py").write_bytes(b"# \xe9\n")
    before = sorted(project.rglob("*"))
    assert main(["new", "my_model", "--from", "broken"]) == 2
    assert "recipes/broken cannot be copied" in capsys.readouterr().err
    assert sorted(project.rglob("*")) == before
    (broken / "experiment" / "broken.yaml").write_bytes(b"# \xe9\n")
    assert main(["list"]) == 2
    assert "broken.yaml is not in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my-model"], "must be the name of a Python package"),
        (["class"], "must be the name of a Python package"),
        (["../outside"], "must be the name of a Python package"),
        (["digits_mlp"], "recipes/digits_mlp is there already"),
        (["taken"], "taken is the name of an experiment"),
        (["my_model", "--from", "digit_mlp"], "is not a recipe: did you mean digits_mlp?"),
    ],
)
def test_new_when_it_cannot_be_then_says_why_and_leaves_nothing(
    project: Path, capsys: Any, arguments: list[str], words: str
) -> None:
    before = sorted(project.rglob("*"))
    assert main(["new", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert sorted(project.rglob("*")) == before


def test_doctor_when_all_is_well_then_every_check_says_what_it_found(
    monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(PROJECT)
    assert main(["doctor", "+experiment=digits_mlp", f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 7
    assert "c10d on this node alone" in lines[3]
    assert f"{tmp_path / 'run'}, " in lines[4]
    assert not (tmp_path / "run").exists()


def test_doctor_when_something_is_wrong_then_it_is_named_and_the_others_are_checked_all_the_same(
    monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(PROJECT)
    nodes = ("rendezvous=etcd", "rendezvous.endpoint=127.0.0.1:1", "elastic.max_nodes=2", "run_id=x")
    arguments = ["doctor", "+experiment=digits_mlp", "+model.widht=3", "hydra.run.dir=/proc/run", *nodes]
    assert main(arguments) == 2
    said = capsys.readouterr()
    wrong = [line for line in said.out.splitlines() if line.startswith("wrong")]
    assert [line.split()[1] for line in wrong] == ["model", "rendezvous", "run"]
    assert "rendezvous.endpoint=127.0.0.1:1 must be reachable" in wrong[1]
    assert "3 of 7 checks failed" in said.err
    assert main(["doctor", "+experiment=digits_mlp", "sede=3"]) == 2
    assert "did you mean seed?" in capsys.readouterr().err
