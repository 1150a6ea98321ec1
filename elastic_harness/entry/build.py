"""From a checked run to Lightning's objects: module, data module, Trainer.

Imports torch and Lightning. CUDA is never initialised here: this process becomes the agent, and forks nothing
that could use a context of its own; devices are only counted.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.loggers import Logger

from elastic_harness.config import RunConfig, to_yaml
from elastic_harness.config.spelling import unknown
from elastic_harness.config.targets import check_targets, takes_argument
from elastic_harness.display import Display, shown_path
from elastic_harness.errors import ConfigError, HarnessError
from elastic_harness.strategy import ElasticStrategy

# What constructors raise about a value; anything else is a bug, and its traceback is worth more than a sentence.
_INPUT_ERRORS = (ValueError, FileNotFoundError, MisconfigurationException)


def build(run: RunConfig) -> tuple[pl.LightningModule, pl.LightningDataModule, pl.Trainer]:
    """The module, the data module and the Trainer of a run.

    A data module may have a method ``check(model)``, which raises ValueError or FileNotFoundError if the data
    are not there or do not fit the model. Weights are made here, from the seed: all workers start from the same.

    Raises:
        ConfigError: a ``_target_`` or one of its arguments is wrong, or the data are.
    """
    model, data = model_and_data(run)
    callbacks = [_callback(name, node) for name, node in run.callbacks.items()]
    logger = _instance("logger", run.logger, Logger) if run.logger else False
    return model, data, _trainer(run, callbacks, logger)


def model_and_data(run: RunConfig) -> tuple[pl.LightningModule, pl.LightningDataModule]:
    """The module and the data module of a run, which fit each other.

    Raises:
        ConfigError: as for ``build``.
    """
    check_targets(run)
    pl.seed_everything(run.seed, workers=True, verbose=False)
    model = _model(run)
    data: pl.LightningDataModule = _instance("data", run.data, pl.LightningDataModule)
    check = getattr(data, "check", None)
    if callable(check):
        with _input_errors("data", run.data["_target_"]):
            check(model)
    return model, data


def objective(run: RunConfig, trainer: pl.Trainer) -> float | None:
    """The number the run is judged by; None if ``objective.metric`` is null, or was not logged by a single run.

    Raises:
        HarnessError: the module of a job of a sweep has not logged that metric.
    """
    name = run.objective.metric
    if name is None:
        return None
    logged = trainer.callback_metrics
    if name not in logged:
        text = f"objective.metric={name} was not logged: {unknown(name, logged, 'Logged')}"
        if _is_job_of_sweep():
            raise HarnessError(text)
        # A validation would have told, and this one may have been too short for one.
        print(text)  # noqa: T201
        return None
    return float(logged[name])


def introduce(run: RunConfig, model: pl.LightningModule, data: pl.LightningDataModule, trainer: pl.Trainer) -> None:
    """Print what is about to run, and how to resume it."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    workers = trainer.num_devices
    facts = {
        "experiment": run.experiment or "none",
        "data": getattr(data, "description", run.data["_target_"]),
        "model": f"{getattr(model, 'description', run.model['_target_'])}, {weights:,} weights",
        "world": f"{_nodes(run)} with {workers} worker{'s' * (workers > 1)} on {trainer.strategy.root_device.type}",
        "run folder": shown_path(Path(run.run_dir)),
    }
    if HydraConfig.get().mode == RunMode.RUN:
        facts["resume with"] = _resume_command(run)
    Display().header(facts)


def _nodes(run: RunConfig) -> str:
    low, high = run.elastic.min_nodes, run.elastic.max_nodes
    if high == 1:
        return "1 node"
    return f"{high} nodes, each" if low == high else f"{low} to {high} nodes, this one"


def _is_job_of_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _job_number() -> str:
    """Each job of a sweep is a run of its own."""
    return f".{HydraConfig.get().job.num}" if _is_job_of_sweep() else ""


def _resume_command(run: RunConfig) -> str:
    """The command line of this start, made to find this run again."""
    words = [word for word in sys.argv if not word.startswith("resume=")]
    named = any(word.startswith(("run_id=", "hydra.run.dir=")) for word in words)
    return shlex.join(["python", *words, *([] if named else [f"run_id={run.run_id}"])])


def worker_count(run: RunConfig) -> int:
    """Workers on this node, as ``elastic.nproc_per_node`` says.

    Raises:
        ConfigError: ``gpu`` on a machine without one.
    """
    asked = run.elastic.nproc_per_node
    gpus = 0 if run.trainer.get("accelerator") == "cpu" else torch.cuda.device_count()
    if asked == "gpu" and not gpus:
        raise ConfigError(
            "elastic.nproc_per_node=gpu needs a GPU, and none is visible: use auto or a number, and see that "
            "trainer.accelerator is not cpu and CUDA_VISIBLE_DEVICES is not empty."
        )
    if asked == "gpu":
        return gpus
    if asked == "cpu":
        return len(os.sched_getaffinity(0))
    return max(gpus, 1) if asked == "auto" else int(asked)


def _model(run: RunConfig) -> pl.LightningModule:
    target = run.model["_target_"]
    given: dict[str, Any] = {}
    for key in ("optimizer", "scheduler"):
        node = getattr(run, key)
        if node is not None and takes_argument(target, key):
            given[key] = _instance(key, node)
    with _input_errors("model", target):
        # A partial first: what the call itself raises then comes out as it is.
        factory = instantiate({**run.model, "_partial_": True}, _convert_="all")
        model = factory(**given)
    checked: pl.LightningModule = _of_type("model", target, model, pl.LightningModule)
    return checked


def _trainer(run: RunConfig, callbacks: list[Callback], logger: Logger | bool) -> pl.Trainer:
    devices = worker_count(run)
    arguments = {"accelerator": "auto", **instantiate(run.trainer, _convert_="all")}
    if arguments["accelerator"] == "auto":
        # With fewer GPUs than workers were asked for, all of them use CPUs; the header says so.
        asked_for_cpu = run.elastic.nproc_per_node == "cpu"
        arguments["accelerator"] = "cpu" if asked_for_cpu or devices > torch.cuda.device_count() else "gpu"
    strategy = ElasticStrategy(
        elastic=run.elastic,
        rendezvous=run.rendezvous,
        restart=run.restart,
        checkpoint=run.checkpoint,
        objective=run.objective,
        preemption=run.preemption,
        watchdog=run.watchdog,
        run_dir=run.run_dir,
        resume=run.resume,
        run_id=run.run_id + _job_number(),
    )
    strategy.config_yaml = to_yaml(run)
    with _input_errors("trainer", "pytorch_lightning.Trainer"), _quiet():
        return pl.Trainer(
            **arguments,
            devices=devices,
            strategy=strategy,
            logger=logger,
            callbacks=callbacks,
            default_root_dir=run.run_dir,
            enable_progress_bar=False,
            enable_checkpointing=False,
        )


def _callback(name: str, node: Mapping[str, Any]) -> Callback:
    made: Callback = _instance(f"callbacks.{name}", node, Callback)
    if isinstance(made, Checkpoint):
        raise ConfigError(
            f"callbacks.{name}._target_={node['_target_']} must not write checkpoints, which the group checkpoint is "
            f"for: leave callbacks.{name} out, and use checkpoint.every_n_steps, checkpoint.every_seconds, and "
            "checkpoint.keep_best with objective.metric and objective.direction."
        )
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what Lightning says of every Trainer: devices it did not find, packages to buy, arguments given."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _instance(key: str, node: Mapping[str, Any], kind: type[Any] | None = None) -> Any:
    with _input_errors(key, node["_target_"]):
        made = instantiate(dict(node), _convert_="all")
    return made if kind is None else _of_type(key, node["_target_"], made, kind)


def _of_type(key: str, target: str, made: Any, kind: type[Any]) -> Any:
    if not isinstance(made, kind):
        raise ConfigError(
            f"{key}._target_={target} must make a {kind.__name__}, and makes a {type(made).__name__}: "
            f"name a subclass of pytorch_lightning's {kind.__name__}."
        )
    return made


@contextmanager
def _input_errors(key: str, target: str) -> Iterator[None]:
    """Errors about a value become a ConfigError that names the key; others are bugs, and stay as they are."""
    try:
        yield
    except InstantiationException as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, (*_INPUT_ERRORS, InstantiationException)):
            raise ConfigError(_about(key, target, cause)) from error
        raise cause from None
    except _INPUT_ERRORS as error:
        raise ConfigError(_about(key, target, error)) from error


def _about(key: str, target: str, error: BaseException) -> str:
    text = str(error)
    if text.startswith((f"{key}.", f"{key}=")):
        return text  # It names its own key, as in `data.root=/x does not exist: ...`.
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{key} ({target}) cannot be made: {text} ({type(error).__name__}{place})"
