"""How far the run is, as one node knows it: takes in what the workers say, and writes the timeline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from elastic_harness.checkpoint.states import RunStates
from elastic_harness.checkpoint.writer import Capture, Outcome, Written
from elastic_harness.display import Display
from elastic_harness.events import Timeline
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import Evaluated, Finished, HandedOver, Held, Raised, Resumed, Signalled, StepTimes
from elastic_harness.rendezvous import ElasticRendezvous, Round
from elastic_harness.result import finite
from elastic_harness.stop_signals import StopSignals
from elastic_harness.stragglers import Stragglers

log = logging.getLogger(__name__)


class Course:
    """The run's course.

    Args:
        generation: the newest there was before.
        timeline: takes the events; None keeps none.
        display: shows them.
        stop: is told of signals that workers get.
        nodes: know whether a failure was charged.
        states: takes the states of the workers; None where nothing is trained.
        straggler_factor: how many times the median a worker has to be slow to be named.

    Attributes:
        generation: the current one.
        world_size: its workers on all nodes; None before the first.
        leads: whether this node has rank 0, and so writes for the run.
        step: optimizer steps finished.
        epoch: epochs finished.
        made_progress: whether a step was finished since this start.
        output: what local rank 0 sent in the end; None until then.
    """

    def __init__(
        self,
        generation: int,
        timeline: Timeline | None,
        display: Display,
        stop: StopSignals,
        nodes: ElasticRendezvous,
        states: RunStates | None,
        straggler_factor: float,
    ) -> None:
        self.generation = generation
        self.world_size: int | None = None
        self.leads = False
        self.step = timeline.last_step() if timeline is not None else 0
        self.epoch = 0
        self.made_progress = False
        self.output: bytes | None = None
        self._timeline = timeline
        self._display = display
        self._stop = stop
        self._nodes = nodes
        self._states = states
        self._first_step: int | None = None
        self._straggler_factor = straggler_factor

    def begin(self, joined: Round) -> None:
        """Another generation begins."""
        self.generation, self.world_size, self.leads = joined.generation, joined.world_size, joined.rank == 0
        self._stragglers = Stragglers(self._straggler_factor)

    def look(self, workers: Sequence[LocalWorker]) -> None:
        """See in their records how far the workers are."""
        self.step = max(self.step, *(each.progress.step for each in workers))
        self.epoch = max(self.epoch, *(each.progress.epoch for each in workers))
        self.made_progress |= self._first_step is not None and self.step > self._first_step

    def read(self, source: LocalWorker) -> None:
        """Take in what a worker has sent."""
        for message in source.messages():
            match message:
                case Resumed():
                    self._resumed(message)
                case Capture():
                    self.step = max(self.step, message.step)
                    if self._states is not None:
                        self._states.submit(message, self.generation)
                case Evaluated(epoch, step, metrics):
                    self._display.evaluated(message)
                    if self.leads:
                        self.record("evaluated", step=step, epoch=epoch, metrics=finite(metrics))
                case StepTimes(seconds):
                    self._tell_step_times(seconds)
                case Raised():
                    source.raised = message
                case Held():
                    source.held = message
                case HandedOver():
                    source.handed_over = message
                case Signalled(number):
                    self._stop.note(number)
                case Finished(output):
                    source.finished = message
                    if source.assignment.local_rank == 0:
                        self.output = output

    def _resumed(self, message: Resumed) -> None:
        lost, self.step = max(self.step - message.step, 0), message.step
        if self._first_step is None:
            self._first_step = message.step
        self._display.resumed(*message)
        if self.leads and (message.checkpoint is not None or self._nodes.failures):
            self.record("resumed", checkpoint=message.checkpoint, steps_lost=lost)

    def _tell_step_times(self, seconds: list[float]) -> None:
        if not self.leads:
            return
        self.record("step_times", seconds=[round(each, 6) for each in seconds])
        for slow in self._stragglers.look(seconds):
            self.record("straggler", rank=slow.rank, seconds=slow.seconds, median=slow.median)
            self._display.line(
                f"rank {slow.rank} is slow: {slow.seconds:.3g} s for its part of a step, {slow.median:.3g} s is usual"
            )

    def record(self, event: str, **details: Any) -> None:
        """Write an event into the log and the timeline."""
        place = {"generation": self.generation, "step": self.step, "world_size": self.world_size, **details}
        log.info("%s %s", event, place)
        if self._timeline is None:
            return
        try:
            self._timeline.record(event, **place)
        except OSError as error:  # the run matters more than its story
            self._display.line(f"{event} cannot be written into {self._timeline.path} ({error.strerror})")

    def record_written(self, outcomes: Sequence[Outcome]) -> None:
        """Write down which checkpoints have been written, and which could not be."""
        for each in outcomes:
            if isinstance(each, Written):
                self.record("checkpoint_saved", step=each.step, checkpoint=each.path)
            else:
                self._display.line(str(each))
                self.record("checkpoint_failed", reason=str(each))
