"""Hydra's complaints about a command line or a config file, in the words of the house and all at once.

Hydra stops at its first complaint. ``explained`` puts the override it complained about right, or leaves it
out, and composes again until the rest composes; that rest is then parsed, so the user sees all mistakes of
one start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from elastic_harness.config import SCHEMAS, allowed_keys, parse
from elastic_harness.config.resolving import dotted_keys
from elastic_harness.config.spelling import did_you_mean, unknown
from elastic_harness.errors import ConfigError

_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
_WHAT_IS_TRAINED = ("experiment", "model", "data", "optimizer", "scheduler")
_OPEN_GROUPS = ("model", "data", "optimizer", "scheduler", "trainer", "logger", "callbacks")


class _Complaint(NamedTuple):
    """What Hydra refused.

    Args:
        sentence: what to tell the user; None for a key that does not exist: the others are not known yet.
        override: the override at fault; None if it is a file.
        instead: what was probably meant.
        rest_is_judged: whether the config without the override says something about the user's mistakes.
    """

    sentence: str | None
    override: str | None = None
    instead: str | None = None
    rest_is_judged: bool = True


def explained(error: Exception, project: Path, arguments: Sequence[str]) -> ConfigError:
    """The error that Hydra raised before the job began, with all other mistakes of this start.

    Args:
        error: what came out of ``hydra.main``.
        project: the folder with ``conf``.
        arguments: the command line.
    """
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return ConfigError(
            f"hydra.run.dir={error.filename} cannot be made ({error.strerror}): "
            "choose a folder that you can write to with hydra.run.dir=PATH."
        )
    overrides = [a for a in arguments if not a.startswith("-") and ("=" in a or a.startswith("~"))]
    sweep = "-m" in arguments or "--multirun" in arguments
    complaints: list[_Complaint] = []
    cfg, run_dir = None, ""
    while cfg is None:
        complaint = _complaint(error, overrides)
        complaints.append(complaint)
        if complaint.override not in overrides:
            break
        overrides.remove(complaint.override)
        overrides += [complaint.instead] if complaint.instead else []
        try:
            cfg, run_dir = _composed(project, overrides, sweep)
        except _COMPOSE_ERRORS as next_error:
            error = next_error
    keys = list(dotted_keys(OmegaConf.to_container(cfg, resolve=False))) if cfg is not None else []
    problems = [c.sentence or _unknown_key(c.override or "", keys) for c in complaints]
    if cfg is not None and all(complaint.rest_is_judged for complaint in complaints):
        try:
            parse(cfg, run_dir, None)
        except ConfigError as more:
            problems += more.problems
    return ConfigError(problems)


def _composed(project: Path, overrides: list[str], sweep: bool) -> tuple[DictConfig, str]:
    """The job's config, and its run folder, which is not made; of a sweep, the first value of each choice."""
    if sweep:
        overrides = [re.sub(r"^([^=]*=)([^\[{'\"(]*?),.*$", r"\1\2", override) for override in overrides]
    with initialize_config_dir(str(project / "conf"), version_base="1.3"):
        cfg = compose("config", overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    run_dir = str(Path(cfg.hydra.run.dir).absolute())
    with read_write(cfg.hydra.runtime), open_dict(cfg.hydra.runtime):
        cfg.hydra.runtime.output_dir = run_dir
    HydraConfig.instance().set_config(cfg)
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return cfg, run_dir


def _complaint(error: Exception, overrides: Sequence[str]) -> _Complaint:
    message = str(error) or str(error.__cause__)
    first = " ".join(message.split("\nSee https://")[0].split("\nConfig search path:")[0].split())
    if isinstance(error, OverrideParseException):
        return _Complaint(_unreadable(error.override, first), error.override)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, first, overrides)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return _Complaint(f"{mark.name} is not valid YAML at line {mark.line + 1}: {error.problem or error}.")
    if match := re.match(r"In '([^']+)': Could not override '([^'@]+)(@[^']*)?'", first):
        return _Complaint(_override_in_file(*match.groups()))
    if match := re.match(r"Could not override '([^']+)'(\. No match in the defaults list)?", first):
        return _not_there(match.group(1), match.group(2) is not None, first, overrides)
    if isinstance(error, TypeError) and (override := _list_for_a_group(overrides)):
        group = override.partition("=")[0]
        return _Complaint(f"{override} must name one option of the group: give its keys one by one, {group}.KEY=VALUE.")
    if first.startswith("Config group override must be a string"):
        return _not_an_option(first, overrides)
    if match := re.match(r"Could not append to config. An item is already at '([^']+)'", first):
        override = _override_of(match.group(1), overrides) or f"+{match.group(1)}=VALUE"
        plain = override.lstrip("+")
        sentence = f"{override} must not begin with `+`, since {match.group(1)} exists: write {plain}."
        return _Complaint(sentence, override, instead=plain)
    if match := re.match(r"Ambiguous value for argument '(.+?)' 1\. ", first):
        return _Complaint(_ambiguous(match.group(1)), match.group(1))
    if match := re.search(r"Multiple values for (\S+)\.|(\S+) appears more than once", first):
        return _Complaint(_chosen_twice(match.group(1) or match.group(2), overrides))
    if match := re.match(r"Error merging override (.+)", first):
        cause = str(error.__cause__).splitlines()[0] if error.__cause__ else "wrong type"
        override = match.group(1)
        return _Complaint(f"{override} cannot be set ({cause}): give a value of the right type.", override)
    return _Complaint(f"{first.rstrip('.')}.")


def _unreadable(override: str, reason: str) -> str:
    key, _, value = override.partition("=")
    if value.startswith("~"):
        return f"{override} cannot be read: `~` is not expanded after `=`, write {key}=$HOME{value[1:]}."
    return (
        f"{override} cannot be read ({reason}): a value with `=`, `,`, a space or brackets "
        f"needs both quotes, '{key}=\"{value}\"'."
    )


def _not_an_option(first: str, overrides: Sequence[str]) -> _Complaint:
    """Hydra does not say which override it means; the usual one is ``logger=null``."""
    override = next((o for o in overrides if re.fullmatch(r"\+?[\w/@]+=null", o)), None)
    if override is None:
        return _Complaint(f"{first.rstrip('.')}.")
    instead = f"~{override.lstrip('+').partition('=')[0]}"
    return _Complaint(f"{override} is not an option: leave a group out with {instead}.", override, instead)


def _list_for_a_group(overrides: Sequence[str]) -> str | None:
    """Hydra takes a list for the names of several options, and fails on anything else in it."""
    groups = (*SCHEMAS, *_OPEN_GROUPS)
    return next((o for o in overrides if re.match(r"\w+=\[", o) and o.partition("=")[0] in groups), None)


def _ambiguous(override: str) -> str:
    key, _, value = override.partition("=")
    return (
        f"{override} must be one value: add -m to sweep over {value}, write {key}=[{value}] for a list, "
        f"or quote a text with a comma, '{key}=\"{value}\"'."
    )


def _chosen_twice(group: str, overrides: Sequence[str]) -> str:
    return (
        f"{group} is chosen twice: write `override /{group}: OPTION` in the defaults list of "
        f"{_experiment_file(overrides)}, or choose {group}=OPTION only once."
    )


def _experiment_file(overrides: Sequence[str]) -> str:
    chosen = _override_of("experiment", overrides)
    return f"the file of experiment {chosen.partition('=')[2]}" if chosen else "conf/config.yaml"


def _override_in_file(file: str, group: str, package: str | None) -> str:
    if package is not None and "experiment" in package:
        return (
            f"{file}.yaml overrides {group} in a package of its own, which has no effect: let the file begin "
            "with the line `# @package _global_`."
        )
    groups = [key for key in allowed_keys("") if key in SCHEMAS or key in _OPEN_GROUPS]
    return f"{file}.yaml overrides a group that does not exist, {group}: {unknown(group, groups, 'Groups')}"


def _missing_option(error: MissingConfigException, first: str, overrides: Sequence[str]) -> _Complaint:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    if not error.options or not group:
        return _Complaint(f"{first.rstrip('.')}.", _override_of(group, overrides), rest_is_judged=False)
    listed = unknown(option, error.options, "Experiments" if group == "experiment" else "Options")
    override = next((o for o in overrides if o.lstrip("+") == f"{group}={option}"), None)
    if override is None:
        return _Complaint(f"{group}={option} (in {_experiment_file(overrides)}) does not exist: {listed}")
    guess = did_you_mean(option, error.options)
    instead = f"{override.partition('=')[0]}={guess}" if guess else None
    return _Complaint(
        f"{override} does not exist: {listed}",
        override,
        instead,
        bool(instead) or group not in _WHAT_IS_TRAINED,
    )


def _not_there(key: str, is_group: bool, first: str, overrides: Sequence[str]) -> _Complaint:
    override = _override_of(key, overrides)
    if override is None:
        return _Complaint(f"{first.rstrip('.')}.")
    if not is_group:
        return _Complaint(None, override)
    why = "an experiment is added to the config" if key == "experiment" else "conf/config.yaml does not list it"
    return _Complaint(f"{override} must begin with `+`, since {why}: write +{override}.", override, f"+{override}")


def _unknown_key(override: str, keys: Sequence[str]) -> str:
    """For an override of a key that the composed config does not have."""
    key = override.partition("=")[0].lstrip("+~")
    parent, _, name = key.rpartition(".")
    siblings = allowed_keys(parent) or [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == parent]
    inner = [k for k in keys if k.rpartition(".")[2] == name]
    start = f"{override} sets a key that does not exist:"
    if inner:
        return f"{start} did you mean {' or '.join(inner)}?"
    if not siblings and parent:
        return f"{start} there is no {parent} here; choose its option first."
    if parent.partition(".")[0] in _OPEN_GROUPS:
        return f"{start} {unknown(name, siblings, 'Keys here')} To add it, write +{override}."
    return f"{start} {unknown(name, siblings)}"


def _override_of(key: str, overrides: Sequence[str]) -> str | None:
    return next((o for o in overrides if re.split("[=@]", o.lstrip("+~"))[0] == key), None)
