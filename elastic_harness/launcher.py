"""The parent side of ``Trainer.fit()``: starts the agent here, and brings rank 0's result back into the Trainer.

Lightning calls ``launch`` in the process of the user; everything between that call and its return happens in
workers. See docs/decisions/0001-agent-in-the-launcher.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies.launchers.launcher import _Launcher
from pytorch_lightning.trainer.states import TrainerFn
from torch.distributed.elastic.agent.server.api import WorkerSpec

from elastic_harness import pickling, rendezvous, worker, zygote
from elastic_harness.agent import ElasticAgent
from elastic_harness.checkpoint.callback import ElasticCheckpoint
from elastic_harness.display import Display
from elastic_harness.errors import Stopped
from elastic_harness.events import Timeline
from elastic_harness.messages import EXIT_MISSING_MAIN_GUARD
from elastic_harness.process_state import ProcessState
from elastic_harness.restart import RestartPolicy
from elastic_harness.result import Result
from elastic_harness.run_folder import RunFolder

if TYPE_CHECKING:
    from elastic_harness.strategy import ElasticStrategy


class ElasticLauncher(_Launcher):
    """Runs a Trainer's function in workers under an elastic agent.

    Args:
        strategy: the strategy it belongs to.
    """

    def __init__(self, strategy: ElasticStrategy) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        return False

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)`` in every worker.

        Args:
            function: the inner part of a Trainer's method, such as ``trainer._fit_impl``.
            args: its arguments; ``args[0]`` is the LightningModule.
            trainer: the Trainer that takes over the result.
            kwargs: its keyword arguments.

        Returns:
            What the function returned on rank 0.

        Raises:
            ConfigError: the module does not pickle, the run folder is not usable, a main guard is missing.
            TrainingFailed: the workers failed for good.
            Stopped: a signal asked the run to stop.
        """
        if zygote.importing_script():
            # A worker is importing the user's script and met fit() again. Its agent knows what the code means.
            os._exit(EXIT_MISSING_MAIN_GUARD)
        assert trainer is not None
        folder = self._folder(trainer)
        with folder.in_use():
            timeline = None
            if trainer.state.fn == TrainerFn.FITTING:
                timeline = Timeline(folder.events, os.uname().nodename)
                self._prepare_fit(trainer, folder)
            payload = pickling.dumps(trainer, function, args, kwargs)
            with _agent_log(folder), _emptied(trainer) as callbacks:
                output = self._supervise(payload, args[0], folder, timeline)
                _take_over(output, trainer, callbacks)
        return output.results

    def kill(self, signum: Any) -> None:
        """Nothing to do: only the agent ends workers."""

    def _supervise(
        self, payload: bytes, module: pl.LightningModule, folder: RunFolder, timeline: Timeline | None
    ) -> worker.Output:
        """Run the agent to the end and record how it ended."""
        display = Display()
        started = time.monotonic()
        agent = self._agent(payload, module, folder, timeline, display)
        status, output = "failed", None
        try:
            if timeline is not None:
                timeline.record("run_started", generation=None, step=None, world_size=None)
            with display.progress():
                agent.run()
            assert agent.output is not None
            output = worker.Output.from_bytes(agent.output)
            status = "finished"
            return output
        except Stopped:
            status = "preempted"
            raise
        finally:
            if timeline is not None:
                place = {"generation": agent.generation, "step": agent.step, "world_size": agent.world_size}
                timeline.record("run_finished", **place, status=status)
                result = Result.of(status, agent.step, output, timeline, time.monotonic() - started)
                folder.write_result(result)
                display.summary(result, folder)

    def _agent(
        self,
        payload: bytes,
        module: pl.LightningModule,
        folder: RunFolder,
        timeline: Timeline | None,
        display: Display,
    ) -> ElasticAgent:
        strategy = self._strategy
        elastic = strategy.elastic
        num_workers = strategy.num_processes
        threads = elastic.num_threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
        spec = WorkerSpec(
            role="worker",
            local_world_size=num_workers,
            entrypoint=worker.main,
            rdzv_handler=rendezvous.create(elastic, strategy.rendezvous, folder.path.name),
            max_restarts=strategy.restart.max_restarts,
            monitor_interval=elastic.monitor_interval,
        )
        return ElasticAgent(
            spec,
            payload=payload,
            state=ProcessState.capture(threads),
            policy=RestartPolicy(strategy.restart),
            folder=folder,
            timeline=timeline,
            display=display,
            modules=(type(module).__module__,),
            resume_from=None if strategy.resume in ("auto", "never") else strategy.resume,
        )

    def _folder(self, trainer: pl.Trainer) -> RunFolder:
        path = self._strategy.run_dir or os.path.join(trainer.default_root_dir, "elastic")  # noqa: PTH118
        return RunFolder(Path(path), self._strategy.checkpoint.dir)

    def _prepare_fit(self, trainer: pl.Trainer, folder: RunFolder) -> None:
        strategy = self._strategy
        if strategy.resume == "never":
            folder.set_aside()
        if strategy.config_yaml is not None:
            folder.write_config(strategy.config_yaml)
        for logger in trainer.loggers:
            _ = logger.version  # settled here, or every generation would count up
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, ElasticCheckpoint) for callback in callbacks):
            callbacks.append(ElasticCheckpoint(folder.checkpoints, strategy.checkpoint, strategy.objective))


@contextlib.contextmanager
def _emptied(trainer: pl.Trainer) -> Iterator[list[Callback]]:
    """Take the callbacks and loggers out of the Trainer: hooks and savers run in workers only.

    Lightning calls ``on_exception`` of every callback here, too, when ``launch`` raises; one that saves then would
    write this process's untrained weights over real ones.
    """
    callbacks, loggers = trainer.callbacks, trainer.loggers  # type: ignore[attr-defined]
    trainer.callbacks, trainer.loggers = [], []  # type: ignore[attr-defined]
    finished = False
    try:
        yield callbacks
        finished = True
    finally:
        if finished:
            trainer.callbacks, trainer.loggers = callbacks, loggers  # type: ignore[attr-defined]


def _take_over(output: worker.Output, trainer: pl.Trainer, callbacks: list[Callback]) -> None:
    """Put rank 0's result into the Trainer of this process."""
    if output.state_dict is not None:
        # Not strict: hooks may have changed the module in the workers.
        trainer.lightning_module.load_state_dict(output.state_dict, strict=False)
        trainer.fit_loop.load_state_dict(output.loops)
        trainer.fit_loop.restarting = False
    trainer.state = output.trainer_state
    trainer.callback_metrics.update(output.callback_metrics)
    for callback in callbacks:
        if callback.state_key in output.callbacks:
            callback.load_state_dict(output.callbacks[callback.state_key])
        if output.best_model_path and hasattr(callback, "best_model_path"):
            with contextlib.suppress(AttributeError):
                callback.best_model_path = output.best_model_path


@contextlib.contextmanager
def _agent_log(folder: RunFolder) -> Iterator[None]:
    """Send the log of the harness and of torch's agent to ``logs/agent_<node>.log`` as well."""
    folder.logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder.logs / f"agent_{os.uname().nodename}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("elastic_harness")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
