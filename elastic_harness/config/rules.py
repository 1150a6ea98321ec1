"""The rules a value must keep beyond its type; a broken one becomes a sentence: key, value, rule, fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_harness.config import preemption_rules, rendezvous_rules, restart_rules, watchdog_rules
from elastic_harness.config.key_rules import KeyRule, at_least
from elastic_harness.config.resolving import ABSENT
from elastic_harness.config.spelling import shown

if TYPE_CHECKING:
    from elastic_harness.config import RunConfig

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RANGE = re.compile(r"\s*(\d+)\s*(?::|-|\.\.)\s*(\d+)\s*")


_ONE_KEY: tuple[KeyRule, ...] = (
    ("elastic.min_nodes", at_least(1), "must be at least 1", "one node is elastic.min_nodes=1"),
    ("elastic.max_nodes", at_least(1), "must be at least 1", "one node is elastic.max_nodes=1"),
    (
        "elastic.logical_world_size",
        lambda value: value is None or value >= 1,
        "must be at least 1",
        "null is one logical rank for each worker there can be",
    ),
    (
        "elastic.consistency",
        lambda value: value in ("bitwise", "batch", "none"),
        "must be bitwise, batch or none",
        "the default is bitwise",
    ),
    (
        "elastic.num_threads",
        lambda value: value is None or value >= 1,
        "must be at least 1",
        "null shares the cores evenly among the logical ranks",
    ),
    (
        "elastic.monitor_interval",
        lambda value: 0 < value <= 5,
        "must be more than 0 and at most 5",
        "the default is 0.1",
    ),
    *rendezvous_rules.ONE_KEY,
    *restart_rules.ONE_KEY,
    *watchdog_rules.ONE_KEY,
    ("checkpoint.every_n_steps", at_least(0), "must be at least 0", "0 writes only the last checkpoint"),
    ("checkpoint.every_seconds", lambda value: value is None or value > 0, "must be more than 0", "null is never"),
    (
        "checkpoint.keep_last",
        at_least(1),
        "must be at least 1",
        "a run resumes from its last checkpoint, so one is always kept",
    ),
    ("checkpoint.keep_best", at_least(0), "must be at least 0", "0 keeps only the newest ones"),
    *preemption_rules.ONE_KEY,
    (
        "objective.direction",
        lambda value: value in ("max", "min"),
        "must be max or min",
        "max for an accuracy, min for a loss",
    ),
    ("seed", lambda value: 0 <= value < 2**32, "must be between 0 and 4294967295", "the default is 42"),
    (
        "run_id",
        lambda value: _RUN_ID.fullmatch(value) is not None,
        "must be a plain name of letters, digits, `.`, `_` and `-`, since it names the run folder",
        "for another place use hydra.run.dir=PATH",
    ),
)

RESUME_WORDS = ("auto", "never", "force")
"""Values of ``resume`` that are not the path of a checkpoint."""

TRAINER_KEYS_OF_THE_HARNESS = {
    "devices": "use elastic.nproc_per_node",
    "num_nodes": "use elastic.min_nodes and elastic.max_nodes",
    "strategy": "ElasticStrategy is the strategy; set it up with the elastic, rendezvous and restart groups",
    "logger": "use the logger group, for example logger=tensorboard or ~logger",
    "callbacks": "use the callbacks group",
    "default_root_dir": "files go to the run folder; use run_id or hydra.run.dir",
    "enable_progress_bar": "the harness shows the progress of all workers in one place",
    "enable_checkpointing": "use the checkpoint group, for example checkpoint=off",
}
"""Arguments of the Trainer that the harness gives itself, and the key to use instead."""


def broken_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    """One sentence for each broken rule.

    Args:
        run: the run; a key in ``bad`` holds its default there.
        bad: dotted keys whose problem is known already; no rule about them is judged.
    """
    for key, rule, sentence, fix in _ONE_KEY:
        value = _get(run, key)
        if key not in bad and not rule(value):
            bad.add(key)
            yield f"{key}={shown(value)} {sentence}: {fix}."
    yield from _node_rules(run, bad)
    yield from rendezvous_rules.rendezvous_rules(run, bad)
    yield from restart_rules.restart_rules(run, bad)
    yield from watchdog_rules.watchdog_rules(run, bad)
    yield from _nproc_rule(run, bad)
    yield from _world_rule(run, bad)
    yield from _resume_rule(run, bad)
    yield from _checkpoint_dir_rule(run, bad)
    yield from preemption_rules.preemption_rules(run, bad)
    for key in sorted(TRAINER_KEYS_OF_THE_HARNESS.keys() & run.trainer.keys()):
        yield f"trainer.{key}={shown(run.trainer[key])} is set by the harness: {TRAINER_KEYS_OF_THE_HARNESS[key]}."


def _node_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    low, high = run.elastic.min_nodes, run.elastic.max_nodes
    if "elastic.max_nodes" in bad:
        return
    if "elastic.min_nodes" not in bad and low > high:
        yield (
            f"elastic.min_nodes={low} must be between 1 and elastic.max_nodes={high}: "
            "raise elastic.max_nodes or lower elastic.min_nodes."
        )


def unnamed_run(max_nodes: int) -> str:
    """What is said of a run of several nodes that does not say which run it is."""
    return (
        f"run_id must be given with elastic.max_nodes={max_nodes}, or each node would train a run of its own: "
        "add run_id=NAME, the same on all nodes."
    )


def _nproc_rule(run: RunConfig, bad: set[str]) -> Iterator[str]:
    value = run.elastic.nproc_per_node
    number = isinstance(value, int) and not isinstance(value, bool)
    if "elastic.nproc_per_node" in bad or value in ("auto", "gpu", "cpu") or (number and value >= 1):
        return
    yield (
        f"elastic.nproc_per_node={shown(value)} must be a number of at least 1, auto, gpu or cpu: "
        "auto is one worker a GPU, or one worker where there is none."
    )


def _world_rule(run: RunConfig, bad: set[str]) -> Iterator[str]:
    elastic = run.elastic
    keys = {f"elastic.{name}" for name in ("logical_world_size", "nproc_per_node", "max_nodes", "consistency")}
    if not keys & bad and isinstance(elastic.nproc_per_node, int) and elastic.consistency != "none":
        yield from world_problems(elastic.logical_world_size, elastic.nproc_per_node, elastic.max_nodes)


def world_problems(logical_world_size: int | None, nproc_per_node: int, max_nodes: int) -> Iterator[str]:
    """Every worker hosts at least one logical rank, so there cannot be more workers than those.

    Args:
        logical_world_size: None means as many as there can be workers.
        nproc_per_node: workers a node.
        max_nodes: largest number of nodes.
    """
    largest = nproc_per_node * max_nodes
    if logical_world_size is not None and logical_world_size < largest:
        yield (
            f"elastic.logical_world_size={logical_world_size} must be at least the {largest} workers of "
            f"elastic.nproc_per_node={nproc_per_node} times elastic.max_nodes={max_nodes}, since each hosts one "
            "logical rank or more: raise it (a new run), or start fewer workers."
        )


def _resume_rule(run: RunConfig, bad: set[str]) -> Iterator[str]:
    if "resume" in bad or run.resume in RESUME_WORDS or Path(run.resume).is_file():
        return
    yield (
        f"resume={run.resume} must be auto, never, force, or the path of a checkpoint, and there is no such file: "
        "correct the path (a name with `=`, `,` or a space needs both quotes: 'resume=\"a=1.ckpt\"'), "
        "or use resume=never to start over."
    )


def _checkpoint_dir_rule(run: RunConfig, bad: set[str]) -> Iterator[str]:
    folder = run.checkpoint.dir
    if "checkpoint.dir" in bad or folder is None:
        return
    if not folder:
        yield "checkpoint.dir='' must be a folder or a URL: null is the folder `checkpoints` in the run folder."
    elif "://" in folder and not folder.startswith("file://"):
        import fsspec  # here, since few runs need it

        protocol = folder.partition("://")[0].partition("::")[0]
        try:
            fsspec.get_filesystem_class(protocol)
        except (ValueError, ImportError) as error:
            extra = " (elastic-harness[s3] has it)" if protocol in ("s3", "s3a") else ""
            yield (
                f"checkpoint.dir={folder} must be a folder or a URL that can be used here, and fsspec says of "
                f"{protocol}://: {str(error).rstrip('.')}{extra}. Install what is missing, or choose another place."
            )


def mapping_rules(values: Mapping[str, Any]) -> Iterator[str]:
    """What must be a mapping, with or without a ``_target_``; ``values`` may hold ``ABSENT`` ones."""
    if values.get("trainer") in (None, {}):
        yield "trainer=null must be set: choose trainer=default, or give at least trainer.max_epochs=NUMBER."
    if all(values.get(key) in (None, {}) for key in ("model", "data")):
        yield (
            "nothing to train is chosen: add an experiment, for example +experiment=imagenet_elastic "
            "(`python train.py --help` lists them), or model=NAME and data=NAME."
        )
    for key in ("model", "data"):
        value = values.get(key)
        if value in (None, {}):
            if all(values.get(other) in (None, {}) for other in ("model", "data")):
                continue
            yield (
                f"{key}={shown(value)} must be set: choose an experiment with +experiment=NAME "
                f"(`python train.py --help` lists them), or one option with {key}=NAME."
            )
        elif value is not ABSENT:
            yield from _target_rule(key, value)
    for key in ("optimizer", "scheduler", "logger"):
        if values.get(key) is not None and values[key] is not ABSENT:
            yield from _target_rule(key, values[key])
    for key in ("trainer", "callbacks"):
        if not isinstance(values.get(key, {}), (dict, type(None))) and values[key] is not ABSENT:
            yield f"{key}={shown(values[key])} must be a mapping: see that the folder conf/{key} is there."
    callbacks = values.get("callbacks")
    for name, value in callbacks.items() if isinstance(callbacks, dict) else ():
        if value is not None and value is not ABSENT:
            yield from _target_rule(f"callbacks.{name}", value)


def _target_rule(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        group = key.partition(".")[0]
        yield (
            f"{key}={shown(value)} must be a mapping with a _target_: "
            f"choose an option of the folder conf/{group}, and see that the folder is there."
        )
    elif not isinstance(value.get("_target_", ABSENT), str) and value.get("_target_", None) is not ABSENT:
        yield (f"{key} has no _target_: add {key}._target_=PACKAGE.MODULE.CLASS, the class or function that makes it.")


def range_hint(path: str, value: Any, expected: str) -> str:
    """How to write a value of the right type; two numbers with a colon were meant as a range of nodes."""
    numbers = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if numbers and path in ("elastic.min_nodes", "elastic.max_nodes"):
        low, high = numbers.groups()
        return f"a range is written as two keys, elastic.min_nodes={low} elastic.max_nodes={high}."
    return f"give {path} as {expected}."


def lost_header(value: Any, experiment: str | None) -> str:
    """Why a config has a key called ``experiment``."""
    if not isinstance(value, dict):
        return (
            f"experiment={shown(value)} is not a top-level key: experiments are files in conf/experiment or "
            "recipes/*/experiment, chosen with +experiment=NAME; none was found there."
        )
    keys = ", ".join(str(key) for key in value)
    file = f"experiment/{experiment}.yaml" if experiment else "the experiment file"
    return (
        f"experiment holds the keys {keys}, which have no effect there: let {file} begin "
        "with the line `# @package _global_`, and its defaults with `override /GROUP: OPTION`."
    )


def _get(run: RunConfig, dotted: str) -> Any:
    node: Any = run
    for name in dotted.split("."):
        node = getattr(node, name)
    return node
