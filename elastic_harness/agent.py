"""The agent: one a node, in the process that called ``fit()``; starts, watches and restarts the local workers.

It is torch's ``LocalElasticAgent`` (rendezvous, ranks, life cycle) with three parts replaced: workers are forked from
the zygote, their end is noticed at once instead of by polling, and a failed generation is followed by another one
only if the restart policy says so.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from elastic_harness import zygote
from elastic_harness.display import Display
from elastic_harness.errors import ClusterError, ConfigError, Stopped, TrainingFailed
from elastic_harness.events import Timeline
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import (
    EXIT_MISSING_MAIN_GUARD,
    Assignment,
    Evaluated,
    Finished,
    Raised,
    Resumed,
    Saved,
    SetAside,
)
from elastic_harness.process_state import ProcessState
from elastic_harness.restart import Failure, RestartPolicy
from elastic_harness.run_folder import RunFolder
from elastic_harness.stop_signals import STOP_SIGNALS, StopSignals

log = logging.getLogger(__name__)

# How long a failure that looks like the consequence of another one waits for that other one to show.
_CULPRIT_SECONDS = 2.0
# How long a worker that has finished may take to leave.
_FAREWELL_SECONDS = 5.0
# How long a worker's death by a stop signal waits for the same signal to reach the agent.
_SAME_SIGNAL_SECONDS = 0.5


class ElasticAgent(LocalElasticAgent):
    """Runs one function in a group of workers, generation after generation.

    ``run()`` returns when all workers finished. ``output`` then holds what rank 0 sent; ``generation``, ``step``,
    ``world_size`` and ``evaluated`` (the newest validation) say how far it is, at any time.

    Args:
        spec: torch's description of the worker group; its ``max_restarts`` is not used.
        payload: pickle of ``(trainer, function, args, kwargs)``.
        state: what every worker takes over from this process.
        policy: decides about failures.
        folder: the run's folder.
        timeline: takes the events; None keeps none (evaluation is not part of the run's story).
        display: shows the progress.
        stop: the signals that stop the run.
        modules: what the zygote imports beforehand.
        resume_from: checkpoint to start from when the run has none of its own.

    Raises (from ``run``):
        TrainingFailed: the policy does not allow another generation.
        Stopped: a signal asked this process to stop.
        ClusterError: the store of a generation cannot be made.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        payload: bytes,
        state: ProcessState,
        policy: RestartPolicy,
        folder: RunFolder,
        timeline: Timeline | None,
        display: Display,
        stop: StopSignals,
        modules: tuple[str, ...],
        resume_from: str | None,
    ) -> None:
        super().__init__(spec, DefaultLogsSpecs(os.devnull), start_method="forkserver")
        self.output: bytes | None = None
        self.evaluated: Evaluated | None = None
        self.failures: list[Failure] = []
        self.generation = folder.next_generation() - 1
        self.step = timeline.last_step() if timeline is not None else 0
        self._payload = zygote.context().RawArray(ctypes.c_char, len(payload))
        ctypes.memmove(self._payload, payload, len(payload))
        self._state = state
        self._policy = policy
        self._folder = folder
        self._timeline = timeline
        self._display = display
        self._stop = stop
        self._modules = modules
        self._resume_from = resume_from
        self._locals: list[LocalWorker] = []
        self._first_step: int | None = None
        self._made_progress = False

    @property
    def world_size(self) -> int:
        """Number of workers of the current generation on all nodes."""
        return self._worker_group.workers[0].world_size

    # -- life cycle ----------------------------------------------------------------------------------------------

    def _invoke_run(self, role: str = "default") -> RunResult:
        group = self._worker_group
        while True:
            failure = self._run_generation(group)
            if failure is None:
                ranks = [each.assignment.rank for each in self._locals]
                return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
            self._raise_if_stopped()
            self.failures.append(failure)
            self._record("worker_failed", rank=failure.rank, cause=failure.describe(), log=failure.log)
            self._stop_workers(group)
            decision = self._policy.decide(self.failures)
            if not decision.restart:
                log_line = f"\nfull log: {failure.log}" if failure.log else ""
                raise TrainingFailed(f"{failure.describe()} ({decision.reason}){log_line}", failure.traceback)
            self._display.restarting(failure, decision)

    def _run_generation(self, group: WorkerGroup) -> Failure | None:
        """Start a generation and watch it to its end; what went wrong, or None if all finished."""
        try:
            self._initialize_workers(group)
        except zygote.ZygoteDiedError:
            return Failure(None, "zygote", "", step=self.step)
        except DistError as error:
            raise ClusterError(f"the store of generation {self.generation + 1} cannot be made: {error}") from error
        while True:
            result = self._monitor_workers(group)
            self._display.update([each.progress for each in self._locals])
            if result.state is WorkerState.SUCCEEDED:
                return None
            self._raise_if_stopped()
            if result.state is WorkerState.FAILED:
                failure = self._first_failure()
                if failure.name in {number.name for number in STOP_SIGNALS}:
                    wait([self._stop.reader], timeout=_SAME_SIGNAL_SECONDS)
                return failure

    def _raise_if_stopped(self) -> None:
        if self._stop.received is not None:
            raise Stopped(self._stop.received)

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        zygote.start(self._modules)
        self.generation += 1
        logs = self._folder.log_folder(self.generation)
        self._locals = []
        for member in worker_group.workers:
            assignment = self._assignment(member, worker_group, logs)
            self._locals.append(LocalWorker.start(assignment, self._payload, self._state, self._modules))
        workers = [
            {"rank": each.assignment.rank, "pid": each.pid, "node": os.uname().nodename} for each in self._locals
        ]
        self._display.started(self.generation, [each.pid for each in self._locals])
        self._record("generation_started", workers=workers, restart=bool(self.failures))
        return {each.assignment.local_rank: each.pid for each in self._locals}

    def _assignment(self, member: Worker, group: Any, logs: Path) -> Assignment:
        return Assignment(
            generation=self.generation,
            rank=member.global_rank,
            local_rank=member.local_rank,
            world_size=member.world_size,
            node_rank=group.group_rank,
            num_nodes=group.group_world_size,
            store_host=group.master_addr,
            store_port=group.master_port,
            checkpoint_dir=self._folder.checkpoints.location,
            lock_path=str(self._folder.workers_lock),
            log_path=str(logs / f"rank_{member.global_rank}.log"),
            resume_from=self._resume_from,
        )

    # -- watching ------------------------------------------------------------------------------------------------

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Wait for news of the workers, at most ``monitor_interval`` seconds, and take it in."""
        pending = [each for each in self._locals if each.finished is None and each.raised is None]
        news: list[Connection | int] = [self._stop.reader]
        news += [each.connection for each in pending]
        news += [each.process.sentinel for each in pending]
        wait(news, timeout=worker_group.spec.monitor_interval)
        # What a dead worker sent is complete, so who is dead is asked first.
        dead = [each for each in pending if not each.process.is_alive()]
        for each in pending:
            self._read(each)
        self.step = max(self.step, *(each.progress.step for each in self._locals))
        self._made_progress |= self._first_step is not None and self.step > self._first_step
        if all(each.finished for each in self._locals):
            for each in self._locals:
                each.process.join(_FAREWELL_SECONDS)
            return RunResult(WorkerState.SUCCEEDED)
        failed = any(each.raised for each in pending) or any(not each.finished for each in dead)
        return RunResult(WorkerState.FAILED if failed else WorkerState.HEALTHY)

    def _read(self, source: LocalWorker) -> None:
        for message in source.messages():
            match message:
                case Resumed(checkpoint, step):
                    lost, self.step = max(self.step - step, 0), step
                    if self._first_step is None:
                        self._first_step = step
                    self._display.resumed(checkpoint, step)
                    if checkpoint is not None or self.failures:
                        self._record("resumed", checkpoint=checkpoint, steps_lost=lost)
                case Saved(checkpoint, step):
                    self.step = max(self.step, step)
                    self._record("checkpoint_saved", step=step, checkpoint=checkpoint)
                case SetAside():
                    self._display.set_aside(*message)
                    self._record("checkpoint_set_aside", **message._asdict())
                case Evaluated():
                    self.evaluated = message
                    self._display.evaluated(message)
                case Raised():
                    source.raised = message
                case Finished(output):
                    source.finished = message
                    if source.assignment.rank == 0:
                        self.output = output

    def _first_failure(self) -> Failure:
        """The failure that the others of this generation only follow from."""
        deadline = time.monotonic() + _CULPRIT_SECONDS
        while True:
            ended = [each for each in self._locals if each.raised or not each.process.is_alive()]
            running = [each for each in self._locals if each not in ended]
            for each in self._locals:
                self._read(each)
            failures = [self._failure_of(each) for each in ended if not each.finished]
            causes = [failure for failure, consequence in failures if not consequence]
            if causes:
                return causes[0]
            if not running or time.monotonic() > deadline:
                return failures[0][0]
            wait([each.process.sentinel for each in running], timeout=0.05)

    def _failure_of(self, source: LocalWorker) -> tuple[Failure, bool]:
        """What ended a worker, and whether that only came of another one's end."""
        rank, log = source.assignment.rank, source.assignment.log_path
        common: dict[str, Any] = {"step": self.step, "made_progress": self._made_progress, "log": log}
        raised = source.raised
        if raised is not None and raised.refused:
            raise ConfigError(raised.refused)
        if raised is not None and raised.exit_code is None:
            failure = Failure(
                rank, "exception", raised.name, raised.message, raised.place,
                permanent=raised.permanent, traceback=raised.traceback, **common,
            )  # fmt: skip
            return failure, raised.consequence
        code = raised.exit_code if raised is not None else source.process.exitcode
        assert code is not None
        if code == EXIT_MISSING_MAIN_GUARD and not source.progress.started:
            raise ConfigError(_MISSING_MAIN_GUARD)
        if code == zygote.EXIT_CODE_OF_ORPHANS and not zygote.is_alive():
            return Failure(None, "zygote", "", **common), False
        if code < 0:
            return Failure(rank, "signal", _signal_name(-code), exit_code=code, **common), False
        # A worker that never got as far as its first message ended in the import of the user's script, before its
        # output went to its log: it will do so again.
        return Failure(rank, "exit", "", exit_code=code, permanent=not source.progress.started, **common), False

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        for each in self._locals:
            each.kill()
        for each in self._locals:
            each.wait()
            each.connection.close()
        self._locals = []

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._stop_workers(self._worker_group)

    # -- reporting -----------------------------------------------------------------------------------------------

    def _record(self, event: str, **details: Any) -> None:
        place = {"generation": self.generation, "step": self.step, "world_size": self.world_size, **details}
        log.info("%s %s", event, place)
        if self._timeline is not None:
            self._timeline.record(event, **place)

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        # torch's looks up this machine's full name in the DNS for every event, and nobody reads them.
        return Event(f"torchelastic.worker.status.{state}", source=source)


_MISSING_MAIN_GUARD = (
    'The script calls fit() outside of `if __name__ == "__main__":`. Every worker imports the script, so that line '
    'is needed: put what builds the Trainer and calls fit() below `if __name__ == "__main__":`.'
)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
