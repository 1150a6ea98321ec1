"""Names of exceptions in modules, which are imported to be found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_harness.config import RestartConfig
from elastic_harness.config.restart_rules import dotted_name, unknown_errors


def test_unknown_errors_when_the_defaults_are_kept_then_all_are_known() -> None:
    assert list(unknown_errors(RestartConfig())) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("json.JSONDecodeError", "which is another name of json.decoder.JSONDecodeError: use that one"),
        ("json.decoder.JSONDecodError", "has no such exception: did you mean JSONDecodeError?"),
        ("json.loads", "json has no such exception"),
        ("no_such_module.MyError", "no_such_module cannot be imported: No module named"),
        ("broken_module.MyError", "broken_module cannot be imported: invalid syntax"),
    ],
)
def test_unknown_errors_when_a_name_does_not_fit_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    (tmp_path / "broken_module.py").write_text("def\n")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = unknown_errors(RestartConfig(permanent_errors=[name]))
    assert problem.startswith(f"restart.permanent_errors has {name}")
    assert words in problem


def test_dotted_name_when_the_script_is_imported_by_a_worker_then_it_is_that_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = type("MyError", (Exception,), {"__module__": "__mp_main__"})
    assert dotted_name(own) == "__main__.MyError"
    assert dotted_name(json.JSONDecodeError) == "json.decoder.JSONDecodeError"
    assert dotted_name(KeyError) == "KeyError"


class Outer:
    class InnerError(Exception):
        """Lies in a class."""


def test_unknown_errors_when_an_exception_lies_in_a_class_then_it_is_found() -> None:
    assert list(unknown_errors(RestartConfig(permanent_errors=[f"{__name__}.Outer.InnerError"]))) == []
    (problem,) = unknown_errors(RestartConfig(permanent_errors=[f"{__name__}.Outter.InnerError"]))
    assert "cannot be imported" in problem
