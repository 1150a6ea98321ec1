"""Every ``python train.py`` line in the README, the help text and the head of each YAML composes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
TEXTS = [PROJECT / "README.md", *(PROJECT / "conf").rglob("*.yaml"), *(PROJECT / "recipes").rglob("*.yaml")]


def commands() -> set[str]:
    found: set[str] = set()
    for text in TEXTS:
        for line in text.read_text().splitlines():
            if match := re.search(r"(?<![`\w])python train\.py ([^`]*?)(\s{2,}.*|`.*)?$", line):
                found.add(match[1].strip())
    return {command.replace("NAME", "digits_mlp") for command in found}


def test_commands_when_looked_for_then_those_of_the_readme_are_among_them() -> None:
    assert "+experiment=imagenet_elastic run_id=night1" in commands()
    assert "-m +experiment=digits_mlp optimizer.lr=0.1,0.3" in commands()
    assert len(commands()) > 15


@pytest.mark.parametrize("command", sorted(commands() - {"--help"}))
def test_command_when_documented_then_it_composes(command: str, tmp_path: Path) -> None:
    arguments = [argument for argument in shlex.split(command) if argument not in ("-m", "--cfg", "job")]
    done = subprocess.run(
        [sys.executable, str(PROJECT / "train.py"), "--cfg", "job", *(a.partition(",")[0] for a in arguments)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "_target_" in done.stdout
