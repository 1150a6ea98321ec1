"""Recipes are found, and every YAML of the project composes and parses."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml

from elastic_harness import doctor, recipes
from elastic_harness.config import RunConfig
from elastic_harness.config.targets import check_targets
from elastic_harness.entry import register_resolvers
from elastic_harness.errors import ConfigError
from recipes.digits_mlp.module import DigitsData, DigitsMLP

PROJECT = Path(__file__).parents[2]
EXPERIMENTS = [experiment.name for experiment in recipes.list_experiments(PROJECT)]
# Every YAML but the primary config, Hydra's own groups and the experiments is an option of a group.
OPTIONS = [
    path.relative_to(PROJECT / "conf").with_suffix("").as_posix()
    for path in sorted((PROJECT / "conf").rglob("*.yaml"))
    if path.parent.name not in ("conf", "experiment") and "hydra" not in path.parts
]


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    register_resolvers()
    recipes.register(PROJECT)
    yield
    recipes.RecipeSearchPath.folders = ()


def composed(*overrides: str) -> RunConfig:
    return doctor.composed(PROJECT, overrides)


def test_yaml_files_when_counted_then_the_project_has_some() -> None:
    assert "digits_mlp" in EXPERIMENTS
    assert len(OPTIONS) > 8


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_when_composed_then_they_parse_and_fit_their_targets(experiment: str) -> None:
    # A value that only the user can know may be left open.
    check_targets(composed(f"+experiment={experiment}", *_open_values(experiment)))


def _open_values(experiment: str) -> list[str]:
    try:
        composed(f"+experiment={experiment}")
    except ConfigError as error:
        if not all("=??? must be set" in problem for problem in error.problems):
            raise
        return [f"{problem.partition('=')[0]}=/given/by/the/user" for problem in error.problems]
    return []


@pytest.mark.parametrize("option", OPTIONS)
def test_options_when_chosen_then_they_parse(option: str) -> None:
    group, _, name = option.rpartition("/")
    overrides = [f"{group}={name}"]
    try:
        composed("+experiment=digits_mlp", *overrides)
    except ConfigError as error:
        for problem in error.problems:
            # What must be set is the user's; ${data...} belongs to another option than the recipe's.
            assert " must be set" in problem or "${data." in problem, problem


@pytest.mark.parametrize("path", sorted(p for d in ("conf", "recipes") for p in (PROJECT / d).rglob("*.yaml")))
def test_yaml_files_when_opened_then_the_command_comes_first(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line != "# @package _global_"]
    assert lines[0].startswith("# python train.py"), path


def make(project: Path, *files: str) -> Path:
    for file in files:
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text("# @package _global_\n# python train.py +experiment=a\n# What it is.\nseed: 1\n")
    return project


def test_list_experiments_when_there_are_recipes_then_all_are_named(tmp_path: Path) -> None:
    make(tmp_path, "conf/experiment/b.yaml", "recipes/one/experiment/a.yaml")
    first, second = recipes.list_experiments(tmp_path)
    assert (first.name, first.recipe, first.command) == ("a", "one", "python train.py +experiment=a")
    assert (second.name, second.recipe, second.description) == ("b", None, "What it is.")


@pytest.mark.parametrize("other", ["conf/experiment/a.yaml", "recipes/two/experiment/a.yaml"])
def test_register_when_two_experiments_have_one_name_then_both_files_are_named(tmp_path: Path, other: str) -> None:
    make(tmp_path, "recipes/one/experiment/a.yaml", other)
    with pytest.raises(ConfigError) as raised:
        recipes.register(tmp_path)
    assert other in str(raised.value)
    assert "recipes/one/experiment/a.yaml" in str(raised.value)


# Lightning's use of torch's tree functions, and its advice to use loading processes.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers.*")
def test_digits_mlp_when_trained_under_a_plain_trainer_then_it_learns() -> None:
    pl.seed_everything(42, workers=True, verbose=False)
    model: Any = DigitsMLP(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    pickle.loads(pickle.dumps(model))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=12,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(model, datamodule=DigitsData())
    assert trainer.callback_metrics["val/acc"] > 0.95


def test_experiments_when_they_choose_options_then_set_no_key_of_such_a_group_h02() -> None:
    """An experiment's own values would win over a group that is chosen on the command line."""
    conf = PROJECT / "conf"
    groups = {folder.name for folder in conf.iterdir() if folder.is_dir() and len(list(folder.glob("*.yaml"))) > 1}
    for path in (conf / "experiment").glob("*.yaml"):
        assert groups.isdisjoint(yaml.safe_load(path.read_text())), path.name
