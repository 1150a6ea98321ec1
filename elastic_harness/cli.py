"""The console script: ``elastic-harness list``, ``new``, ``verify`` and ``doctor``. torch is not imported here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from elastic_harness.doctor import doctor
from elastic_harness.errors import ConfigError, HarnessError
from elastic_harness.new_recipe import new_recipe
from elastic_harness.recipes import list_experiments
from elastic_harness.verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="elastic-harness", description="Tools around elastic training runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments and recipes of this project")
    new = commands.add_parser("new", help="start a recipe of your own as a copy of another one")
    new.add_argument("name", help="of the new recipe, for example my_model")
    new.add_argument("--from", dest="source", default="digits_mlp", help="the recipe to copy (default: digits_mlp)")
    check = commands.add_parser("verify", help="train a few steps with 1, 2 and 3 workers and compare the weights")
    check.add_argument("--steps", type=int, default=12, help="optimizer steps of each run (default: 12)")
    check.add_argument("overrides", nargs="+", help="as for train.py, for example +experiment=digits_mlp")
    look = commands.add_parser("doctor", help="see whether this node is fit for a run, without starting it")
    look.add_argument("overrides", nargs="+", help="as for train.py, for example +experiment=digits_mlp")
    given = parser.parse_args(arguments)
    try:
        project = find_project(Path.cwd())
        for line in _lines(project, given):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _lines(project: Path, given: argparse.Namespace) -> Iterable[str]:
    """What the command has to say, as soon as it has."""
    match given.command:
        case "verify":
            return verify(project, given.overrides, given.steps)
        case "doctor":
            return doctor(project, given.overrides)
        case "new":
            return new_recipe(project, given.name, given.source)
    return listing(project)


def find_project(start: Path) -> Path:
    """The folder itself or the nearest parent that has ``train.py`` and ``conf``.

    Raises:
        ConfigError: there is none.
    """
    for folder in (start, *start.parents):
        if (folder / "train.py").is_file() and (folder / "conf").is_dir():
            return folder
    raise ConfigError(
        f"{start} is not inside a project, a folder with train.py and conf: change to the project's folder."
    )


def listing(project: Path) -> list[str]:
    """A line for each experiment, and one more for what it is."""
    lines: list[str] = []
    for experiment in list_experiments(project):
        recipe = f" (recipe {experiment.recipe})" if experiment.recipe else ""
        lines.append(f"{experiment.name}{recipe}")
        lines.append(f"    {experiment.command or f'python train.py +experiment={experiment.name}'}")
        if experiment.description:
            lines.append(f"    {experiment.description}")
    return lines or ["No experiments in conf/experiment or recipes/*/experiment."]
