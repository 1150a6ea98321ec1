"""The strict way from a composed config to the typed schema of its groups.

Neither torch nor Lightning is imported here: a mistake is found in about a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import DictConfig, OmegaConf

from elastic_harness.config.annotations import fits, spelt
from elastic_harness.config.resolving import ABSENT, dotted_keys, plain_values
from elastic_harness.config.rules import RESUME_WORDS, broken_rules, lost_header, mapping_rules, range_hint
from elastic_harness.config.schema import (
    SCHEMAS,
    BackoffConfig,
    CheckpointConfig,
    ElasticConfig,
    ObjectiveConfig,
    PreemptionConfig,
    RendezvousConfig,
    RestartConfig,
    RunConfig,
    WatchdogConfig,
)
from elastic_harness.config.spelling import shown, unknown
from elastic_harness.errors import ConfigError

__all__ = [
    "SCHEMAS",
    "BackoffConfig",
    "CheckpointConfig",
    "ElasticConfig",
    "ObjectiveConfig",
    "PreemptionConfig",
    "RendezvousConfig",
    "RestartConfig",
    "RunConfig",
    "WatchdogConfig",
    "allowed_keys",
    "parse",
    "to_dict",
    "to_yaml",
]

_Schema = TypeVar("_Schema")

_SET_BY_THE_HARNESS = ("run_dir", "experiment")
_OPTIONAL_TARGETS = ("optimizer", "scheduler", "logger")


def parse(cfg: DictConfig, run_dir: str, experiment: str | None) -> RunConfig:
    """The composed config, resolved and checked; nothing past this function sees a ``DictConfig``.

    Only names and values are judged here, so neither torch nor the recipe is imported. The arguments of the
    ``_target_``s are checked by ``elastic_harness.config.targets.check_targets``.

    Args:
        cfg: the job's config, without Hydra's own node.
        run_dir: the run folder.
        experiment: name of the chosen experiment, if any.

    Raises:
        ConfigError: with every mistake that was found.
    """
    values, problems = plain_values(cfg)
    allowed = allowed_keys("")
    bad: set[str] = set()

    for key in [key for key in values if key not in allowed]:
        value = values.pop(key)
        if key == "experiment":
            problems.append(lost_header(value, experiment))
        else:
            problems.append(_unknown_key(key, value, allowed, values))

    run = RunConfig(run_id="", run_dir=run_dir, experiment=experiment)
    for key, schema in SCHEMAS.items():
        setattr(run, key, _typed(schema, values.pop(key, {}), f"{key}.", problems, bad))
    problems += mapping_rules(values)
    top: dict[str, Any] = {key: values[key] for key in ("run_id", "seed", "resume") if key in values}
    if isinstance(top.get("run_id"), int):
        top["run_id"] = str(top["run_id"])  # typed without quotes on the command line
    _fill(run, top, "", problems, bad)
    for key in ("model", "data", "trainer", "callbacks"):
        value = values.get(key)
        setattr(run, key, _without_absent(value) if isinstance(value, dict) else {})
    run.callbacks = {name: value for name, value in run.callbacks.items() if isinstance(value, dict)}
    for key in _OPTIONAL_TARGETS:
        value = values.get(key)
        setattr(run, key, _without_absent(value) if isinstance(value, dict) else None)

    problems += broken_rules(run, bad)
    if problems:
        raise ConfigError(problems)
    if run.resume not in RESUME_WORDS:
        run.resume = str(Path(run.resume).absolute())
    return run


def allowed_keys(group: str) -> list[str]:
    """The keys of a group owned by the harness, or of the top level (``""``); none for any other group."""
    schema = SCHEMAS.get(group) if group else RunConfig
    return [f.name for f in fields(schema) if f.name not in _SET_BY_THE_HARNESS] if schema else []


def to_dict(run: RunConfig) -> dict[str, Any]:
    """The run as plain dictionaries, as ``config.yaml`` in the run folder holds it: without the password."""
    values = asdict(run)
    values["rendezvous"].pop("password")
    return values


def to_yaml(run: RunConfig) -> str:
    """The run as YAML, in the order of the schema."""
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(run)))


def _typed(schema: type[_Schema], values: Any, prefix: str, problems: list[str], bad: set[str]) -> _Schema:
    group = schema()
    if not isinstance(values, dict):
        key = prefix.removesuffix(".")
        if values is not ABSENT:
            problems.append(
                f"{key}={shown(values)} must be a mapping: give its keys, for example "
                f"{prefix}{fields(schema)[0].name}=VALUE, and see that the folder conf/{key} is there."  # type: ignore[arg-type]
            )
        bad.update(f"{prefix}{f.name}" for f in fields(schema))  # type: ignore[arg-type]
        return group
    _fill(group, values, prefix, problems, bad)
    return group


def _fill(group: Any, values: Mapping[str, Any], prefix: str, problems: list[str], bad: set[str]) -> None:
    """Set the fields of a dataclass instance; what is wrong is listed, and its key put into ``bad``."""
    hints = get_type_hints(type(group))
    allowed = [f.name for f in fields(group)]
    for key, value in values.items():
        path = f"{prefix}{key}"
        if value is ABSENT or (isinstance(value, list) and any(each is ABSENT for each in value)):
            bad.add(path)
        elif key not in allowed:
            problems.append(f"{path}={shown(value)} is not a key: {unknown(str(key), allowed)}")
        elif is_dataclass(hints[key]):
            setattr(group, key, _typed(hints[key], value, f"{path}.", problems, bad))
        elif not fits(value, hints[key]):
            bad.add(path)
            expected = spelt(hints[key])
            problems.append(f"{path}={shown(value)} must be {expected}: {range_hint(path, value, expected)}")
        else:
            setattr(group, key, value)


def _unknown_key(key: str, value: Any, allowed: list[str], values: Mapping[str, Any]) -> str:
    inner = [name for name in dotted_keys(dict(values)) if name.rpartition(".")[2] == key]
    if inner:
        return f"{key}={shown(value)} is not a top-level key: did you mean {' or '.join(inner)}?"
    return f"{key}={shown(value)} is not a top-level key: {unknown(str(key), allowed)}"


def _without_absent(node: Any) -> Any:
    """The plain node without the values that did not resolve (each is a problem of its own already)."""
    if isinstance(node, dict):
        return {key: _without_absent(value) for key, value in node.items() if value is not ABSENT}
    if isinstance(node, list):
        return [_without_absent(value) for value in node if value is not ABSENT]
    return node
