"""The agent: one a node, in the process that called ``fit()``; starts, watches and restarts the local workers.

It is torch's ``LocalElasticAgent`` (rendezvous, ranks, life cycle) with three parts replaced: workers are forked from
the zygote, their end is noticed at once instead of by polling, and a failed generation is followed by another one
only if the restart policy says so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch.distributed import DistError, Store
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from elastic_harness import zygote
from elastic_harness.checkpoint.node_memory import step_of
from elastic_harness.checkpoint.states import Reachable, RunStates
from elastic_harness.course import Course
from elastic_harness.curves import ALL_WRITTEN
from elastic_harness.diagnosis import first_failure, out_of_memory_kills
from elastic_harness.display import Display
from elastic_harness.errors import ClusterError, Stopped, TrainingFailed
from elastic_harness.local_worker import LocalWorker, dismiss, end
from elastic_harness.messages import Assignment
from elastic_harness.process_state import ProcessState
from elastic_harness.rendezvous import Change, ElasticRendezvous, Kind
from elastic_harness.rescue import rescue
from elastic_harness.restart import Failure, RestartPolicy
from elastic_harness.run_failures import RunFailures
from elastic_harness.run_folder import RunFolder
from elastic_harness.stop_signals import StopSignals
from elastic_harness.watchdog import Watchdog, hang

# How long handing over a state may take: after a crash, and the share of the time that a stop leaves; writing a
# checkpoint of it has the rest.
_CRASH_SECONDS = 10.0
_STOP_SHARE = 0.6
# What the system takes as one timeout is limited.
_PAUSE_SECONDS = 3600.0


class ElasticAgent(LocalElasticAgent):
    """Runs one function in a group of workers, generation after generation.

    ``run()`` returns when the workers of all nodes have finished. ``course.output`` then holds the result; None if the
    run has finished without this node.

    Args:
        spec: torch's description of the worker group; its ``max_restarts`` is not used.
        nodes: the rendezvous with the other agents.
        payload: pickle of ``(trainer, function, args, kwargs)``.
        state: what every worker takes over from this process.
        policy: decides about failures.
        folder: the run's folder.
        course: says at any time how far the run is, and takes the events.
        display: shows the progress.
        stop: the signals and notices that stop the run.
        modules: what the zygote imports beforehand.
        states: takes the states of the workers, and has those to resume from; None where nothing is trained.
        watchdog: says when workers stand still.

    Raises (from ``run``):
        TrainingFailed: the policy does not allow another generation.
        Stopped: a signal or a notice asked this process to stop.
        ClusterError: the other nodes are lost, or the store of a generation cannot be made.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        nodes: ElasticRendezvous,
        payload: bytes,
        state: ProcessState,
        policy: RestartPolicy,
        folder: RunFolder,
        course: Course,
        display: Display,
        stop: StopSignals,
        modules: tuple[str, ...],
        states: RunStates | None,
        watchdog: Watchdog,
    ) -> None:
        super().__init__(spec, DefaultLogsSpecs(os.devnull), start_method="forkserver")
        self.course = course
        self._payload = zygote.context().RawArray(ctypes.c_char, len(payload))
        ctypes.memmove(self._payload, payload, len(payload))
        self._nodes = nodes
        self._failures = RunFailures(nodes, stop)
        self._state = state
        self._policy = policy
        self._folder = folder
        self._display = display
        self._stop = stop
        self._modules = modules
        self._states = states
        self._watchdog = watchdog
        self._oom_kills: int | None = None
        self._has_trained = False
        self._locals: list[LocalWorker] = []
        self._logged = ALL_WRITTEN

    # -- life cycle ----------------------------------------------------------------------------------------------

    def _invoke_run(self, role: str = "default") -> RunResult:
        group = self._worker_group
        while True:
            try:
                ending = self._run_generation(group)
            except RendezvousClosedError as error:
                raise TrainingFailed(str(error)) from error
            if ending is None:
                ranks = [each.assignment.rank for each in self._locals]
                return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
            if isinstance(ending, Failure):
                self._recover(ending)
            else:
                self._give_way(ending)

    def _run_generation(self, group: WorkerGroup) -> Failure | Change | None:
        """Start a generation and watch it to its end; what ended it, or None if the workers of all nodes finished."""
        try:
            self._initialize_workers(group)
        except zygote.ZygoteDiedError:
            return Failure(None, "zygote", "", **self._circumstances())
        except DistError as error:
            raise ClusterError(f"the store of a generation cannot be made: {error}") from error
        try:
            return self._watch(group)
        except Exception:  # a bug of the harness, too: what the workers hold is kept whatever happens
            self._raise_if_stopped()
            self._rescue(_CRASH_SECONDS)
            raise

    def _watch(self, group: WorkerGroup) -> Failure | Change | None:
        finished = False
        while True:
            result = self._monitor_workers(group)
            self._display.update([each.progress for each in self._locals])
            change = self._nodes.changed()
            if self._nodes.has_finished:  # asked last, or the end of the run could pass for a change
                dismiss(self._locals)
                return None
            if change is not None and change.kind is Kind.FENCED:
                return change
            if result.state is WorkerState.SUCCEEDED and not finished:
                if self._states is not None:
                    self.course.record_written(self._states.finish_writing())
                self._nodes.finish()
                finished = True
                continue
            self._raise_if_stopped()
            if result.state is WorkerState.FAILED:
                return first_failure(self._locals, self.course.read, **self._circumstances())
            running = [each for each in self._locals if each.finished is None]
            still = self._watchdog.look_at(running, time.monotonic())
            if still is not None:
                return hang(still, running, **self._circumstances())
            if change is not None:
                return change

    def _circumstances(self) -> dict[str, Any]:
        """What is known of a failure whatever it is."""
        return {
            "step": self.course.step,
            "made_progress": self.course.made_progress,
            "out_of_memory": out_of_memory_kills() != self._oom_kills,
            "node": os.uname().nodename if (self._worker_group.group_world_size or 1) > 1 else "",
            "time": time.time(),
        }

    def _recover(self, failure: Failure) -> None:
        """Go on after a failure, as far as the policy allows, unless it came of what another node tells of."""
        self._raise_if_stopped()
        self.course.record("worker_failed", cause=failure.describe(), **failure.facts())
        # The other nodes hear of the cause before this one does anything that takes time.
        failures = [] if failure.consequence else self._failures.charge(failure, self.course.generation)
        self._rescue(_CRASH_SECONDS)
        self._stop_workers(self._worker_group)
        if not failures:
            change = self._failures.cause_elsewhere(self.course.generation, self._raise_if_stopped)
            if change is not None:
                self._give_way(change)
                return
            failures = self._failures.charge(failure, self.course.generation)
        decision, newest = self._policy.decide(failures), failures[-1]
        if not decision.restart:
            log_line = f"\nfull log: {newest.log}" if newest.log else ""
            raise TrainingFailed(f"{newest.describe()} ({decision.reason}){log_line}", newest.traceback)
        self._display.restarting(newest, decision)
        self._pause(decision.delay)

    def _pause(self, seconds: float) -> None:
        """Wait before a restart; a stop ends that."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            wait([self._stop.reader], timeout=min(left, _PAUSE_SECONDS))
            self._raise_if_stopped()

    def _give_way(self, change: Change) -> None:
        """Stop the workers, since the round is over; what they hold is kept."""
        self._rescue(self._nodes.margin if change.kind is Kind.FENCED else _CRASH_SECONDS)
        self._stop_workers(self._worker_group)
        if change.kind is Kind.CLOSED:
            raise TrainingFailed(change.text)
        self.course.record("round_over", kind=change.kind.value, cause=change.text)
        self._display.line(f"generation {self.course.generation} ends at step {self.course.step}: {change.text}")

    def _raise_if_stopped(self) -> None:
        stop = self._stop.first
        if stop is not None:
            if stop.notice is not None:
                self.course.record("preemption_notice", notice=stop.notice)
            self._rescue(_STOP_SHARE * self._stop.seconds_left(), finish_step=True)
            raise Stopped(stop.number, stop.notice)

    def _rescue(self, seconds: float, *, finish_step: bool = False) -> None:
        """Keep the newest state that a worker holds."""
        step = max((each.progress.begun for each in self._locals), default=0) if finish_step else 0
        if self._states is None:
            return
        path = rescue(self._locals, self.course.read, self._states.memory.places, step=step, seconds=seconds)
        if path is not None:
            self.course.record("rescued", step=step_of(path))
            self.course.step = step_of(path)

    # -- starting ------------------------------------------------------------------------------------------------

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        # All that is needed is in the round; torch's would wait in the store for a node that died since.
        joined = self._nodes.round
        assert joined is not None
        size, ranks = joined.world_size, range(joined.first_worker, joined.first_worker + spec.local_world_size)
        return [Worker(index, rank, rank, size, size) for index, rank in enumerate(ranks)]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        zygote.start(self._modules)
        joined = self._nodes.round
        assert joined is not None
        self.course.begin(joined)
        self._watchdog.begin(time.monotonic())
        self._oom_kills = out_of_memory_kills()
        logs = self._folder.log_folder(self.course.generation)
        self._locals = []
        state = self._states.reachable() if self._states else None
        for each in state.damaged if state else ():
            self._display.set_aside(*each)
            self.course.record("checkpoint_set_aside", checkpoint=each.path, reason=each.reason, moved_to=each.moved_to)
        if self._states is not None and state is not None:
            self._states.memory.drop_partial()
            if not self.course.leads:
                self._states.memory.drop_before(state.step)
        for member in worker_group.workers:
            assignment = self._assignment(member, worker_group, logs, state)
            self._locals.append(LocalWorker.start(assignment, self._payload, self._state, self._modules))
        workers = [
            {"rank": each.assignment.rank, "pid": each.pid, "node": os.uname().nodename} for each in self._locals
        ]
        self._display.started(self.course.generation, [each.pid for each in self._locals])
        resize = self._has_trained and not joined.after_failure
        self._has_trained = True
        self.course.record("generation_started", workers=workers, restart=joined.after_failure, resize=resize)
        return {each.assignment.local_rank: each.pid for each in self._locals}

    def _assignment(self, member: Worker, group: Any, logs: Path, state: Reachable | None) -> Assignment:
        return Assignment(
            generation=self.course.generation,
            rank=member.global_rank,
            local_rank=member.local_rank,
            world_size=member.world_size,
            node_rank=group.group_rank,
            num_nodes=group.group_world_size,
            store_host=group.master_addr,
            store_port=group.master_port,
            resume_path=state.path if state else None,
            resume_step=state.step if state else -1,
            logged=self._logged,
            node_memory=tuple(map(str, self._states.memory.places)) if self._states else (),
            lock_path=str(self._folder.workers_lock),
            log_path=str(logs / f"rank_{member.global_rank}.log"),
        )

    # -- watching ------------------------------------------------------------------------------------------------

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Wait for news of the workers, at most ``monitor_interval`` seconds, and take it in."""
        pending = [each for each in self._locals if each.finished is None and each.raised is None]
        news: list[Connection | int] = [self._stop.reader, self._nodes.reader]
        news += [self._states.reader] if self._states else []
        news += [each.connection for each in pending]
        news += [each.process.sentinel for each in pending]
        # A node that hears nothing any more has to notice it by itself, before the others take it for dead.
        wait(news, timeout=min(worker_group.spec.monitor_interval, self._nodes.margin / 2))
        if self._states is not None:
            self.course.record_written(self._states.written())
        # What a dead worker sent is complete, so who is dead is asked first.
        dead = [each for each in pending if not each.process.is_alive()]
        for each in pending:
            self.course.read(each)
        self.course.look(self._locals)
        if all(each.finished for each in self._locals):
            return RunResult(WorkerState.SUCCEEDED)
        failed = any(each.raised for each in pending) or any(not each.finished for each in dead)
        return RunResult(WorkerState.FAILED if failed else WorkerState.HEALTHY)

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        end(self._locals)
        if self._locals:
            self._logged = max((each.progress.logged for each in self._locals if each.assignment.rank == 0), default=0)
        self._locals = []

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._stop_workers(self._worker_group)

    def keep_newest_state(self) -> bool:
        """Make a checkpoint of the newest state, so that nothing is lost when the run goes on another day.

        It stays in this node's memory if that is not this node's to do, and is freed if the others have it.

        Returns:
            Whether this node speaks for the run: it has rank 0, or nobody goes on without it.

        Raises:
            CheckpointError: it cannot be written; it stays in the node's memory.
        """
        if self._states is None:
            return False
        speaks = self._nodes.may_write() and (self.course.leads or self._nodes.nobody_goes_on)
        if speaks:
            self.course.record_written(self._states.keep_newest(self.course.epoch, self.course.generation))
        elif self._nodes.others_go_on or self._nodes.has_finished:
            self._states.memory.drop()
        return speaks

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        # torch's looks up this machine's full name in the DNS for every event, and nobody reads them.
        return Event(f"torchelastic.worker.status.{state}", source=source)
