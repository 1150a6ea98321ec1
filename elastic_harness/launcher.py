"""The parent side of ``Trainer.fit()``: starts the agent here, and brings rank 0's result back into the Trainer.

Lightning calls ``launch`` in the process of the user; everything between that call and its return happens in
workers. See docs/decisions/0001-agent-in-the-launcher.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies.launchers.launcher import _Launcher
from pytorch_lightning.trainer.states import TrainerFn
from torch.distributed.elastic.agent.server.api import WorkerSpec

from elastic_harness import pickling, preemption, rendezvous, worker, zygote
from elastic_harness.agent import ElasticAgent
from elastic_harness.checkpoint import start
from elastic_harness.checkpoint.callback import ElasticCheckpoint
from elastic_harness.checkpoint.node_memory import NodeMemory
from elastic_harness.checkpoint.states import RunStates
from elastic_harness.config.rules import RESUME_WORDS
from elastic_harness.course import Course
from elastic_harness.display import Display
from elastic_harness.errors import ClusterError, ConfigError, HarnessError, Stopped
from elastic_harness.events import Timeline
from elastic_harness.exact.settled import recorded_as
from elastic_harness.messages import EXIT_MISSING_MAIN_GUARD
from elastic_harness.nodes import nodes_of_run
from elastic_harness.output import Output, take_over
from elastic_harness.process_state import ProcessState
from elastic_harness.rendezvous import ElasticRendezvous
from elastic_harness.restart import RestartPolicy
from elastic_harness.result import Result
from elastic_harness.run_folder import RunFolder, finished_text
from elastic_harness.stop_signals import StopSignals
from elastic_harness.user_script import require_same_module, require_script
from elastic_harness.watchdog import Watchdog

if TYPE_CHECKING:
    from elastic_harness.strategy import ElasticStrategy

_KEPT_IN_MEMORY = "the newest state stays in this machine's memory until the run is started again"


@dataclass
class _Launch:
    """What one call of ``launch`` is about; ``timeline`` and ``states`` are None where nothing is trained."""

    payload: bytes
    module: pl.LightningModule
    folder: RunFolder
    stop: StopSignals
    nodes: ElasticRendezvous
    timeline: Timeline | None = None
    states: RunStates | None = None


@dataclass
class _Ending:
    """How the run ended for this node; ``notice`` is the one that stopped it."""

    status: str = "failed"
    failure: str | None = None
    output: Output | None = None
    notice: str | None = None


class ElasticLauncher(_Launcher):
    """Runs a Trainer's function in workers under an elastic agent.

    Args:
        strategy: the strategy it belongs to.
    """

    def __init__(self, strategy: ElasticStrategy) -> None:
        self._strategy = strategy
        self._display = Display()

    def __getstate__(self) -> dict[str, Any]:
        # The workers have no use for the terminal.
        return {**vars(self), "_display": None}

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
            What the function returned on this node's first worker.

        Raises:
            ConfigError: the module does not pickle, the run folder is not usable, a main guard is missing.
            TrainingFailed: the workers failed for good.
            ClusterError: the other nodes cannot be reached.
            Stopped: a signal or a notice asked the run to stop.
            SystemExit: the run has finished without this process.
        """
        if zygote.importing_script():
            # A worker is importing the user's script and met fit() again. Its agent knows what the code means.
            os._exit(EXIT_MISSING_MAIN_GUARD)
        assert trainer is not None
        require_script()
        run_dir = self._strategy.run_dir or os.path.join(trainer.default_root_dir, "elastic")  # noqa: PTH118
        node = os.uname().nodename if self._strategy.elastic.max_nodes > 1 else None
        folder = RunFolder(Path(run_dir), self._strategy.checkpoint.dir, node)
        notices = self._strategy.preemption
        with (
            _hooks_stay_in_workers(trainer),
            StopSignals(notices.grace_seconds) as stop,
            nodes_of_run(self._strategy, trainer, args[0], folder, stop, self._display.line) as nodes,
            folder.in_use(),
        ):
            fingerprint = None
            if trainer.state.fn == TrainerFn.FITTING:
                self._end_if_finished(folder)
                require_same_module(args[0], folder)
                fingerprint = self._prepare(trainer, args[0], folder)
            payload = pickling.dumps(trainer, function, args, kwargs)
            launch = _Launch(payload, args[0], folder, stop, nodes)
            if fingerprint is not None:
                launch.states = self._states(launch, fingerprint)
                launch.timeline = self._begin(folder)
            folder.admit_others()
            watchers = preemption.watchers_of(notices)
            with _agent_log(folder), preemption.watching(watchers, notices.poll_interval, stop.give_notice):
                output = self._supervise(launch)
            take_over(output, trainer)
        return output.results

    def kill(self, signum: Any) -> None:
        """Nothing to do: only the agent ends workers."""

    def _supervise(self, launch: _Launch) -> Output:
        """Run the agent to the end and record how it ended."""
        course = Course(
            launch.folder.next_generation() - 1,
            launch.timeline,
            self._display,
            launch.stop,
            launch.nodes,
            launch.states,
            self._strategy.watchdog.straggler_factor,
        )
        agent, ending = self._agent(launch, course), _Ending()
        try:
            with self._display.progress():
                agent.run()
            if course.output is None:
                ending.status = "finished"
                self._display.line("the run has finished; this node was not needed")
                raise SystemExit(0)
            ending.output = Output.from_bytes(course.output)
            ending.status = "finished"
            return ending.output
        except Stopped as stopped:
            ending.status, ending.notice = "preempted", stopped.notice
            if launch.nodes.others_can_go_on:  # at once; otherwise what this node holds is written first
                launch.nodes.leave()
            raise
        except HarnessError as error:
            ending.failure = getattr(error, "summary", str(error))
            unfit = launch.nodes.came_later and not course.made_progress and launch.nodes.others_can_go_on
            if unfit:  # a node that cannot train does not take the others with it
                launch.nodes.leave()
            elif not isinstance(error, (ClusterError, ConfigError)):
                launch.nodes.close(ending.failure)
            raise
        except Exception as error:
            ending.failure = f"an error in the harness itself: {type(error).__name__}: {error}"
            launch.nodes.close(ending.failure)
            raise
        finally:
            if launch.timeline is not None and launch.states is not None:
                self._conclude(launch, agent, ending)
                launch.states.close()

    def _conclude(self, launch: _Launch, agent: ElasticAgent, ending: _Ending) -> None:
        """Keep what would be lost, and record how the run ended, or how this node left it."""
        assert launch.timeline is not None
        assert launch.states is not None
        speaks_for_run = True
        try:
            speaks_for_run = agent.keep_newest_state()
        except HarnessError as error:
            self._display.line(f"{error}\n{_KEPT_IN_MEMORY}")
        event = "run_finished" if speaks_for_run else "node_left"
        agent.course.record(event, status=ending.status, failure=ending.failure)
        if not launch.folder.path.exists():
            self._display.line(f"run folder {launch.folder.path} is gone: how the run ended is told nowhere else")
        elif speaks_for_run:
            result = Result.of(ending.status, ending.failure, launch.timeline, ending.output)
            self._display.summary(result, launch.folder, ending.notice, launch.states.memory.newest())
            try:
                launch.folder.write_result(result)
            except OSError as error:
                self._display.line(f"result.json cannot be written into {launch.folder.path} ({error.strerror})")
        elif ending.status == "failed" and launch.states.memory.newest() is not None:
            self._display.line(_KEPT_IN_MEMORY)
        elif ending.status == "finished":
            self._display.line("finished; what rank 0 wrote, result.json too, is in the run folder of its node")
        elif launch.nodes.others_go_on:
            self._display.line(f"this node has left after step {agent.course.step}; the other nodes go on")

    def _states(self, launch: _Launch, fingerprint: Mapping[str, Any]) -> RunStates:
        strategy, folder = self._strategy, launch.folder
        weights = sum(each.numel() * each.element_size() for each in launch.module.parameters())
        memory = NodeMemory(folder.path, weights, folder.states)
        if strategy.resume == "never":
            memory.clear()
        memory.require(fingerprint, force=strategy.resume == "force")
        resume_from = None if strategy.resume in RESUME_WORDS else strategy.resume
        keep_last = strategy.checkpoint.keep_last
        may_write = launch.nodes.may_write
        return RunStates(memory, folder.checkpoints, keep_last, fingerprint, resume_from, launch.stop, may_write)

    def _agent(self, launch: _Launch, course: Course) -> ElasticAgent:
        strategy = self._strategy
        elastic = strategy.elastic
        num_workers = strategy.num_processes
        threads = elastic.num_threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
        spec = WorkerSpec(
            role="worker",
            local_world_size=num_workers,
            entrypoint=worker.main,
            rdzv_handler=launch.nodes,
            max_restarts=0,  # the policy decides
            monitor_interval=elastic.monitor_interval,
        )
        return ElasticAgent(
            spec,
            payload=launch.payload,
            nodes=launch.nodes,
            state=ProcessState.capture(threads, rendezvous.interface_of(launch.nodes.address)),
            policy=RestartPolicy(strategy.restart),
            folder=launch.folder,
            course=course,
            display=self._display,
            stop=launch.stop,
            modules=(type(launch.module).__module__,),
            states=launch.states,
            watchdog=Watchdog(strategy.watchdog),
        )

    def _end_if_finished(self, folder: RunFolder) -> None:
        """The process that had the folder may have finished the run while this one waited."""
        if self._strategy.config_yaml is None or not folder.first:
            return
        result = folder.finished(self._strategy.resume, yaml.safe_load(self._strategy.config_yaml))
        if result is not None:
            self._display.line(finished_text(str(folder.path), result))
            raise SystemExit(0)

    def _prepare(self, trainer: pl.Trainer, module: pl.LightningModule, folder: RunFolder) -> dict[str, Any]:
        """Make the Trainer ready, and see that the run can go on in its folder; gives its fingerprint."""
        strategy = self._strategy
        config = recorded_as(strategy.config_yaml, strategy.elastic)
        fingerprint = start.check(folder, module, config, strategy.resume)
        for logger in trainer.loggers:
            _ = logger.version  # settled here, or every generation would count up
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, ElasticCheckpoint) for callback in callbacks):
            callbacks.append(ElasticCheckpoint(folder.checkpoints, strategy.checkpoint, strategy.objective))
        return fingerprint

    def _begin(self, folder: RunFolder) -> Timeline:
        if self._strategy.resume == "never":
            folder.set_aside()
        changes = folder.begin(recorded_as(self._strategy.config_yaml, self._strategy.elastic))
        if changes:
            self._display.line("the configuration has changed since the last start:")
            for change in changes:
                self._display.line(f"  {change}")
        if self._strategy.resume == "force":
            self._display.line(
                "resume=force: optimizer and schedulers go on as in the checkpoint, learning rate included"
            )
        if self._strategy.config_yaml is None:
            self._display.line(f"run folder: {folder.path}")
        timeline = Timeline(folder.events, os.uname().nodename)
        timeline.record("run_started", generation=None, step=None, world_size=None)
        return timeline


@contextlib.contextmanager
def _hooks_stay_in_workers(trainer: pl.Trainer) -> Iterator[None]:
    """Keep Lightning from calling ``on_exception`` of every callback in this process, too, when ``launch`` raises.

    A callback that saves then would write this process's untrained weights over real ones.
    """
    try:
        yield
    except BaseException:
        trainer.callbacks, trainer.loggers = [], []  # type: ignore[attr-defined]
        raise


@contextlib.contextmanager
def _agent_log(folder: RunFolder) -> Iterator[None]:
    """Send the log of the harness to ``logs/agent_<node>.log`` as well."""
    folder.logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder.logs / f"agent_{os.uname().nodename}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("elastic_harness")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
