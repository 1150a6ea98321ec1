"""``elastic-harness list``."""

from __future__ import annotations

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
