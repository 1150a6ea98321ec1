"""Checks every ``_target_`` against the signature it names, before any worker is started.

A misspelt argument that is found in a worker would be retried; here it is found once, in the parent, with
all others. ``check_targets`` imports what the targets name (torch, usually); this module itself does not.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from elastic_harness.config import RunConfig
from elastic_harness.config.annotations import fits, spelt
from elastic_harness.config.rules import TRAINER_KEYS_OF_THE_HARNESS
from elastic_harness.config.spelling import did_you_mean, shown, unknown
from elastic_harness.errors import ConfigError

_TRAINER = "pytorch_lightning.Trainer"
_HYDRA_KEYS = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
_BUILT_FOR_THE_MODEL = ("optimizer", "scheduler")
Problems = Iterator[str]


def check_targets(run: RunConfig) -> None:
    """Import each ``_target_`` and bind its arguments to its signature; the Trainer's arguments, too.

    Raises:
        ConfigError: with every mistake that was found.
    """
    problems = [
        *_model_problems(run),
        *(p for key, node in _other_nodes(run) for p in _node_problems(key, node)),
        *_trainer_problems(run),
    ]
    if problems:
        raise ConfigError(problems)


def target_modules(run: RunConfig) -> list[str]:
    """The modules that the ``_target_``s name, each once, without importing any."""
    nodes = [run.model, *(node for _, node in _other_nodes(run))]
    return list(dict.fromkeys(t.rpartition(".")[0] for node in nodes for t in _targets(node) if "." in t))


def takes_argument(target: str, name: str) -> bool:
    """Whether a target can be called with an argument of this name."""
    parameters = _signature(locate(target)).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def locate(target: str) -> Any:
    """The object behind a dotted name.

    Raises:
        ImportError: it cannot be imported; the message says which part and why.
    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ImportError("it is not a dotted name such as package.module.Class")
    found: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], start=1):
        path = ".".join(parts[:i])
        found = getattr(found, part) if hasattr(found, part) else _submodule(found, path, part)
    return found


def _submodule(parent: Any, path: str, name: str) -> ModuleType:
    where = f"{path} has no {name}"
    if isinstance(parent, ModuleType):
        if hasattr(parent, "__path__"):
            try:
                return importlib.import_module(f"{path}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{path}.{name}":
                    raise
        public = [each for each in dir(parent) if not each.startswith("_")]
        guess = did_you_mean(name, public)
        where += f", did you mean {path}.{guess}?" if guess else ""
    raise ImportError(where)


def _other_nodes(run: RunConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "data", run.data
    for key in ("optimizer", "scheduler", "logger"):
        node = getattr(run, key)
        if node is not None:
            yield key, node
    for name, node in run.callbacks.items():
        yield f"callbacks.{name}", node


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _model_problems(run: RunConfig) -> Problems:
    """The model is called with the optimizer and the scheduler, so its signature decides on those groups."""
    given = {key: getattr(run, key) for key in _BUILT_FOR_THE_MODEL if getattr(run, key) is not None}
    supplied = list(given)
    target = run.model["_target_"]
    found, _ = _found("model", target)
    if found is not None:
        parameters = _signature(found).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for key in [key for key in given if key not in parameters and not open_ended]:
            supplied.remove(key)
            yield (
                f"{key}={shown(given[key].get('_target_'))} is not used: {target} takes no argument {key}. "
                f"Add it to the signature, or leave the group out with ~{key}."
            )
    yield from _node_problems("model", run.model, supplied)


def _trainer_problems(run: RunConfig) -> Problems:
    full = _signature(locate(_TRAINER))
    ours = [p for name, p in full.parameters.items() if name not in TRAINER_KEYS_OF_THE_HARNESS]
    signature = full.replace(parameters=ours)
    yield from _argument_problems("trainer", _TRAINER, run.trainer, signature, [], partial=True)
    for key, value in run.trainer.items():
        yield from _nested_problems(f"trainer.{key}", value)


def _node_problems(key: str, node: dict[str, Any], supplied: list[str] | None = None) -> Problems:
    target = node.get("_target_")
    if not isinstance(target, str):
        yield f"{key}._target_={shown(target)} must be text: give it as PACKAGE.MODULE.CLASS."
        return
    found, problem = _found(key, target)
    if found is None:
        yield problem
        return
    partial = node.get("_partial_", False) is True
    if "_args_" in node:
        partial = True  # Positional ones are not judged, so none is known to be missing.
    yield from _argument_problems(key, target, node, _signature(found), supplied or [], partial)
    for name, value in node.items():
        yield from _nested_problems(f"{key}.{name}", value)


def _nested_problems(key: str, value: Any) -> Problems:
    if isinstance(value, dict):
        if "_target_" in value:
            yield from _node_problems(key, value)
        else:
            for name, inner in value.items():
                yield from _nested_problems(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _nested_problems(f"{key}[{i}]", inner)


def _argument_problems(
    key: str,
    target: str,
    node: Mapping[str, Any],
    signature: inspect.Signature,
    supplied: list[str],
    partial: bool,
) -> Problems:
    parameters = {
        name: p for name, p in signature.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name, value in node.items():
        if name in _HYDRA_KEYS:
            continue
        if name not in parameters:
            if not open_ended:
                allowed = unknown(name, parameters)
                yield f"{key}.{name}={shown(value)} is not an argument of {target}: {allowed}"
        elif not _has_target(value) and not fits(value, parameters[name].annotation):
            expected = spelt(parameters[name].annotation)
            yield f"{key}.{name}={shown(value)} must be {expected}: that is what {target} takes."
    for name, parameter in parameters.items():
        missing = parameter.default is parameter.empty and name not in node and name not in supplied
        if missing and not partial:
            yield f"{key}.{name} must be set, since {target} needs it: {_how_to_give(key, name)}."


def _how_to_give(key: str, name: str) -> str:
    if key == "model" and name in _BUILT_FOR_THE_MODEL:
        return f"choose an option of the group with {name}=NAME"
    if (key, name) in (("optimizer", "params"), ("scheduler", "optimizer")):
        return f"the module gives it; let the config say {key}._partial_: true"
    return f"add +{key}.{name}=VALUE"


def _has_target(value: Any) -> bool:
    """Whether the value is, or holds, something that is instantiated first."""
    return next(_targets(value), None) is not None


def _found(key: str, target: str) -> tuple[Callable[..., Any] | None, str]:
    """The callable of that name; or None, and why there is none."""
    try:
        found = locate(target)
    except (ImportError, SyntaxError, SystemExit) as error:
        return None, f"{key}._target_={target} cannot be imported ({error}): correct the name, or the module it is in."
    if not callable(found):
        kind = type(found).__name__
        return None, f"{key}._target_={target} must be a class or a function, and is a {kind}."
    return found, ""


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    """The signature, with its annotations evaluated where that works."""
    try:
        return inspect.signature(target, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        pass  # Annotations that exist for a type checker only: they fit everything.
    except ValueError:
        return inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])
    plain = inspect.signature(target)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in plain.parameters.values()]
    return plain.replace(parameters=parameters)
