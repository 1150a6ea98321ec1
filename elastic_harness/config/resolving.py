"""From a composed config to plain containers, with everything that does not resolve listed at once.

Hydra leaves ``???``, an interpolation to a typo and an unset environment variable in place until the
value is read: that would be in a worker, once a rank and once a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from elastic_harness.config.spelling import did_you_mean, shown


class _Absent:
    """Marks a value that could not be resolved, so that nothing more is said about it."""


ABSENT = _Absent()


def plain_values(cfg: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The config as plain dictionaries and lists, and one sentence for each value that has none.

    A key whose value does not resolve is left in place with the value ``ABSENT``.
    """
    problems: list[str] = []
    known = list(dotted_keys(OmegaConf.to_container(cfg, resolve=False)))
    values = _plain(cfg, "", known, problems)
    assert isinstance(values, dict)
    return values, problems


def dotted_keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Every key of nested plain dictionaries, dotted."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from dotted_keys(value, f"{prefix}{key}.")


def _plain(node: Any, prefix: str, known: list[str], problems: list[str]) -> Any:
    if isinstance(node, DictConfig):
        return {key: _value(node, key, f"{prefix}{key!s}", known, problems) for key in node}
    if isinstance(node, ListConfig):
        base = prefix.removesuffix(".")
        return [_value(node, i, f"{base}[{i}]", known, problems) for i in range(len(node))]
    return node


def _value(node: Any, key: Any, path: str, known: list[str], problems: list[str]) -> Any:
    if OmegaConf.is_missing(node, key):
        problems.append(f"{path}=??? must be set: {_how_to_set(path)}.")
        return ABSENT
    try:
        value = node[key]
    except InterpolationToMissingValueError:
        return ABSENT  # The missing value itself is in the list.
    except (OmegaConfBaseException, RecursionError) as error:
        raw = OmegaConf.to_container(node, resolve=False)
        text = raw[key] if raw is not None else ""
        problems.append(f"{path}={shown(text)} {_unresolved(error, path, known)}")
        return ABSENT
    return _plain(value, f"{path}.", known, problems)


def _how_to_set(path: str) -> str:
    if "." not in path:
        return (
            f"choose an experiment with +experiment=NAME (`python train.py --help` lists them), "
            f"or one option with {path}=NAME"
        )
    return f"add {path}=VALUE to the command line, or set it in the experiment file"


def _unresolved(error: Exception, path: str, known: list[str]) -> str:
    if isinstance(error, RecursionError):
        return f"refers to itself: give {path} a value."
    message = str(error).splitlines()[0]
    if variable := re.search(r"Environment variable '([^']+)' not found", message):
        name = variable.group(1)
        return f"needs the environment variable {name}, which is not set: export it, or give {path}=VALUE."
    if target := re.search(r"Interpolation key '([^']+)' not found", message):
        guess = did_you_mean(target.group(1), known)
        hint = f"did you mean ${{{guess}}}?" if guess else f"correct it, or give {path}=VALUE."
        return f"refers to {target.group(1)}, which does not exist: {hint}"
    return f"cannot be resolved ({message}): correct it, or give {path}=VALUE."
