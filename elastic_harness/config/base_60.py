"""Numbers to the base of 60: YAML 1.1 reads an unquoted ``1:4``, meant as a range, as the number 64.

https://github.com/yaml/pyyaml/issues/395
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def base_60_numbers(hydra_cfg: Any) -> list[str]:
    """A sentence for each ``1:4`` in the chosen files, which YAML reads as the number 64."""
    choices = hydra_cfg.runtime.choices
    names = ["config", *(f"{group}/{option}" for group, option in choices.items() if option)]
    roots = [Path(source.path) for source in hydra_cfg.runtime.config_sources if source.schema == "file"]
    problems: list[str] = []
    for name in names:
        file = next((root / f"{name}.yaml" for root in roots if (root / f"{name}.yaml").is_file()), None)
        if file is not None:
            problems += _base_60_in(file)
    return problems


def _base_60_in(file: Path) -> Iterator[str]:
    for key, node in _scalars(yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)):
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and ":" in node.value:
            low, _, high = node.value.partition(":")
            yield (
                f"{key}={node.value} ({file}, line {node.start_mark.line + 1}) is read by YAML as a number "
                f"to the base of 60: a range of nodes is two keys, min_nodes: {low} and max_nodes: {high}; "
                "a text needs quotes."
            )


def _scalars(node: Any, key: str = "") -> Iterator[tuple[str, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield key, node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{key}.{name.value}".lstrip("."))
