"""``elastic-harness new``: a recipe of one's own, as a copy of another one."""

from __future__ import annotations

import keyword
import re
import shutil
from pathlib import Path

from elastic_harness.config.spelling import unknown
from elastic_harness.errors import ConfigError
from elastic_harness.recipes import list_experiments


def new_recipe(project: Path, name: str, source: str) -> list[str]:
    """Copy a recipe, whole or not at all, and give the copy its name.

    Args:
        project: the folder with ``train.py`` and ``recipes``.
        name: of the new recipe and its experiment.
        source: name of the recipe to copy.

    Returns:
        Lines that say what to do next.

    Raises:
        ConfigError: a name cannot be used, or the folder cannot be written.
    """
    experiments = list_experiments(project)
    _require_new(project, name, [each.name for each in experiments])
    recipes = [each.name for each in experiments if each.recipe == each.name]
    if source not in recipes:
        raise ConfigError(f"--from {source} is not a recipe: {unknown(source, recipes, 'Recipes')}")
    target, partial = project / "recipes" / name, project / "recipes" / f".{name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(project / "recipes" / source, partial, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        (partial / "experiment" / f"{source}.yaml").rename(partial / "experiment" / f"{name}.yaml")
        for path in partial.rglob("*"):
            if path.suffix in (".py", ".yaml"):
                text = path.read_text(encoding="utf-8")
                renamed = re.sub(rf"(recipes[./]|experiment=){source}\b", rf"\g<1>{name}", text)
                path.write_text(renamed, encoding="utf-8")
        partial.rename(target)
    except (OSError, ValueError) as error:
        raise ConfigError(f"recipes/{source} cannot be copied to {target}: {error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [
        f"recipes/{name}/module.py and recipes/{name}/experiment/{name}.yaml are yours: change them, and",
        f"    python train.py +experiment={name}",
        f"    elastic-harness verify +experiment={name}",
    ]


def _require_new(project: Path, name: str, taken: list[str]) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name} must be the name of a Python package, of small letters, digits and _, since workers import "
            "recipes.NAME.module: choose another one, such as my_model."
        )
    if (project / "recipes" / name).exists():
        raise ConfigError(f"recipes/{name} is there already: choose another name, or remove that folder.")
    if name in taken:
        raise ConfigError(f"{name} is the name of an experiment that is there already: choose another one.")
