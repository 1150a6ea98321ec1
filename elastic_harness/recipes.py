"""Finds the recipes: Hydra looks for ``+experiment=NAME`` in ``conf`` and in each folder of ``recipes``.

A recipe is a folder with a module and ``experiment/NAME.yaml``. It may bring groups of its own
(``recipes/NAME/data/small.yaml``), since the whole folder is a config source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from elastic_harness.errors import ConfigError


@dataclass(frozen=True)
class Experiment:
    """One YAML that ``+experiment=NAME`` selects.

    Args:
        name: the name to select it by.
        path: its file.
        recipe: the recipe it belongs to; None for one in ``conf/experiment``.
        command: the command its header gives; empty if it gives none.
        description: the rest of its header.
    """

    name: str
    path: Path
    recipe: str | None
    command: str
    description: str


class RecipeSearchPath(SearchPathPlugin):
    """Adds the recipes of one project to Hydra's search path."""

    folders: ClassVar[tuple[Path, ...]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.folders:
            search_path.append(provider=f"recipe {folder.name}", path=f"file://{folder}")


def register(project: Path) -> None:
    """Let Hydra find the recipes of the project; called before ``hydra.main`` runs.

    Raises:
        ConfigError: two experiments have one name.
    """
    list_experiments(project)
    RecipeSearchPath.folders = tuple(_recipe_folders(project))
    Plugins.instance().register(RecipeSearchPath)


def list_experiments(project: Path) -> list[Experiment]:
    """The experiments of ``conf/experiment`` and of all recipes, by name.

    Raises:
        ConfigError: two of them have one name, so one would hide the other.
    """
    found: dict[str, Experiment] = {}
    problems: list[str] = []
    for folder, recipe in [(project / "conf", None), *((f, f.name) for f in _recipe_folders(project))]:
        base = folder / "experiment"
        for path in sorted(base.rglob("*.yaml")):
            name = path.relative_to(base).with_suffix("").as_posix()
            if name in found:
                first, second = found[name].path.relative_to(project), path.relative_to(project)
                problems.append(
                    f"experiment={name} must be one file, and there are two, {first} and {second}: rename one of them."
                )
            else:
                found[name] = Experiment(name, path, recipe, *_header(path))
    if problems:
        raise ConfigError(problems)
    return sorted(found.values(), key=lambda experiment: experiment.name)


def _recipe_folders(project: Path) -> Iterator[Path]:
    for folder in sorted((project / "recipes").glob("[!.]*/experiment")):
        yield folder.parent


def _header(path: Path) -> tuple[str, str]:
    """The command and the description out of the comment a YAML opens with."""
    command, words = "", []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not in UTF-8 ({error.reason} at byte {error.start}): save it so.") from error
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if text.startswith("python ") and not command:
            command = text
        elif text and not text.startswith("@"):
            words.append(text)
    return command, " ".join(words)
