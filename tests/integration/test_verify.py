"""``elastic-harness verify`` with real runs."""

from __future__ import annotations

import pytest

from elastic_harness.cli import main


def test_verify_when_called_then_shows_the_same_weights_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "+experiment=digits_mlp", "--steps", "8"]) == 0
    header, *rows, verdict = capsys.readouterr().out.splitlines()
    assert header.split() == ["workers", "restarts", "steps", "weights_sha256"]
    assert [row.split()[-3:-1] for row in rows] == [["0", "8"], ["1", "8"], ["0", "8"]]
    assert len({row.split()[-1] for row in rows}) == 1
    assert verdict == "The same weights, bit for bit."


def test_verify_when_a_run_fails_then_its_words_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "+experiment=digits_mlp", "model.hidden=wide"]) == 1
    assert "model.hidden=wide" in capsys.readouterr().err
