"""The nodes of a run find each other, and agree on what defines it, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.trainer.states import TrainerFn
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError

from elastic_harness import rendezvous
from elastic_harness.checkpoint.fingerprint import differences, fingerprint_of
from elastic_harness.config import ElasticConfig, RendezvousConfig
from elastic_harness.errors import ConfigError, Stopped, TrainingFailed
from elastic_harness.exact.refused import refuse_inexact_training
from elastic_harness.exact.settled import settle
from elastic_harness.rendezvous import ElasticRendezvous
from elastic_harness.run_folder import RunFolder
from elastic_harness.stop_signals import StopSignals

if TYPE_CHECKING:
    from elastic_harness.strategy import ElasticStrategy

# What the first node of a launch settles for all.
_SETTLED = ("logical_world_size", "num_threads")


@contextmanager
def nodes_of_run(
    strategy: ElasticStrategy,
    trainer: pl.Trainer,
    module: pl.LightningModule,
    folder: RunFolder,
    stop: StopSignals,
    say: Callable[[str], None],
) -> Iterator[ElasticRendezvous]:
    """The rendezvous with the other nodes, which this one leaves at the end; ``strategy.elastic`` is settled.

    What is not trained, each node evaluates by itself.

    Args:
        strategy: says who the nodes are.
        trainer: what it is asked to do.
        module: what is trained.
        folder: the run's folder.
        stop: ends the waiting for others.
        say: shows a sentence.

    Raises:
        ConfigError: the run cannot be trained exactly, was started with other numbers, or is another one elsewhere.
        ClusterError: the others cannot be reached.
        TrainingFailed: the run has failed on another node.
        SystemExit: the run has finished without this node.
    """

    handler: ElasticRendezvous | None = None
    is_told = False

    def wait() -> None:
        nonlocal is_told
        if stop.first is not None:
            raise Stopped(stop.first.number, stop.first.notice)
        if handler is not None and handler.is_spare and not is_told:
            nodes = strategy.elastic.max_nodes
            say(f"elastic.max_nodes={nodes} nodes train: this one is a spare, and waits until it is needed")
            is_told = True

    if trainer.state.fn != TrainerFn.FITTING:
        alone = rendezvous.create(RendezvousConfig(), folder.path.name, workers=strategy.num_processes)
        try:
            yield alone
        finally:
            alone.shutdown()
        return
    given = _settle(strategy, trainer, module, folder)
    handler = rendezvous.create(
        strategy.rendezvous,
        strategy.run_id or folder.path.name,
        given,
        workers=strategy.num_processes,
        newest_generation=folder.next_generation() - 1,
        settled={**{name: getattr(strategy.elastic, name) for name in _SETTLED}, "run": _defined_by(strategy)},
        on_wait=wait,
    )
    try:
        if given.max_nodes > 1:
            _agree(strategy, given, handler, say)
        yield handler
    finally:
        handler.shutdown()


def _settle(
    strategy: ElasticStrategy, trainer: pl.Trainer, module: pl.LightningModule, folder: RunFolder
) -> ElasticConfig:
    """Settle what defines the run, as far as this node knows, and refuse what cannot be.

    Returns:
        The configuration as it was given, or as it was recorded.
    """
    if strategy.elastic.consistency != "none":
        refuse_inexact_training(trainer, module)
    recorded = {} if strategy.resume == "never" else folder.recorded("elastic")
    given, cores = strategy.elastic, len(os.sched_getaffinity(0))
    strategy.elastic = settle(given, recorded, strategy.num_processes, cores)
    return strategy.elastic if recorded else given


def _defined_by(strategy: ElasticStrategy) -> dict[str, Any]:
    """What defines the run, but for what is settled."""
    fingerprint = fingerprint_of(yaml.safe_load(strategy.config_yaml or "{}"))
    return {key: value for key, value in fingerprint.items() if not key.startswith("elastic.")}


def _agree(
    strategy: ElasticStrategy, given: ElasticConfig, handler: ElasticRendezvous, say: Callable[[str], None]
) -> None:
    """Take over what the first node has settled."""
    try:
        agreed = handler.settle()
    except RendezvousGracefulExitError as error:
        say(str(error))
        raise SystemExit(0) from error
    except RendezvousClosedError as error:
        raise TrainingFailed(str(error)) from error
    lines = differences(agreed["run"], _defined_by(strategy))
    if lines:
        raise ConfigError(
            f"run_id={strategy.run_id} is a run of other nodes, and this node would train something else:\n"
            + "\n".join(lines)
            + "\nStart all nodes with the same words, or this run with another run_id."
        )
    elastic = settle(given, agreed, strategy.num_processes, 1)
    strategy.elastic = replace(elastic, num_threads=agreed["num_threads"])
