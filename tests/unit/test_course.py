"""What an agent makes of the messages of its workers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from rich.console import Console

from elastic_harness import rendezvous
from elastic_harness.config import RendezvousConfig
from elastic_harness.course import Course
from elastic_harness.display import Display
from elastic_harness.events import Timeline
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import Assignment, Evaluated, Finished, Message, Progress, Resumed, Signalled, StepTimes
from elastic_harness.rendezvous import ElasticRendezvous, Round
from elastic_harness.stop_signals import StopSignals


@pytest.fixture
def nodes() -> Iterator[ElasticRendezvous]:
    handler = rendezvous.create(RendezvousConfig(), "run")
    yield handler
    handler.shutdown()


class Story:
    """A course, its timeline, and one worker that says what it is told to."""

    def __init__(self, folder: Path, nodes: ElasticRendezvous, *, leads: bool = True) -> None:
        self.timeline, self.shown, self.stop = Timeline(folder / "events.jsonl", "a"), io.StringIO(), StopSignals()
        display = Display(Console(file=self.shown))
        self.course = Course(-1, self.timeline, display, self.stop, nodes, None, 1.5)
        self.course.begin(Round(0, 3, 0 if leads else 1, {}, None, {}))
        ours, self._theirs = Pipe()
        self.worker = self._worker(ours)

    def _worker(self, connection: Connection) -> LocalWorker:
        assignment = Assignment(3, 0, 0, 1, 0, 1, "", 0, None, -1, 0, (), "", "")
        return LocalWorker(assignment, None, connection, Progress())  # type: ignore[arg-type]

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self._theirs.send(message)
        self.course.read(self.worker)

    def events(self, name: str) -> list[tuple[int, object]]:
        keys = {"resumed": "steps_lost", "evaluated": "metrics", "straggler": "rank", "step_times": "seconds"}
        return [(event["step"], event[keys[name]]) for event in self.timeline.read(name)]


def test_course_when_workers_resume_before_where_they_were_then_the_steps_are_lost(
    tmp_path: Path, nodes: ElasticRendezvous
) -> None:
    story = Story(tmp_path, nodes)
    story.worker.progress.step = 30
    story.course.look([story.worker])
    assert not story.course.made_progress, "nobody has said where the run began"
    story.tell(Resumed("step_20.ckpt", 20))
    assert (story.course.step, story.events("resumed")) == (20, [(20, 10)])
    story.worker.progress.step = 21
    story.course.look([story.worker])
    assert story.course.made_progress


def test_course_when_a_validation_ends_then_the_node_of_rank_0_keeps_its_metrics(
    tmp_path: Path, nodes: ElasticRendezvous
) -> None:
    for leads, expected in ((False, []), (True, [(7, {"val/acc": 0.5, "lost": None})])):
        story = Story(tmp_path, nodes, leads=leads)
        story.tell(Evaluated(1, 7, {"val/acc": 0.5, "lost": float("nan")}))
        assert story.events("evaluated") == expected
        assert "val/acc 0.5" in story.shown.getvalue()


def test_course_when_step_times_come_then_they_are_kept_and_a_slow_worker_named_once_a_generation(
    tmp_path: Path, nodes: ElasticRendezvous
) -> None:
    story = Story(tmp_path, nodes)
    story.tell(StepTimes([0.1, 0.3]), StepTimes([0.1, 0.3]))
    assert [seconds for _, seconds in story.events("step_times")] == [[0.1, 0.3]] * 2
    assert [rank for _, rank in story.events("straggler")] == [1]
    story.course.begin(Round(0, 4, 0, {}, None, {}))
    story.tell(StepTimes([0.1, 0.3]))
    assert [rank for _, rank in story.events("straggler")] == [1, 1]


def test_course_when_a_worker_has_a_signal_or_is_done_then_the_agent_knows(
    tmp_path: Path, nodes: ElasticRendezvous
) -> None:
    story = Story(tmp_path, nodes)
    story.tell(Signalled(15), Finished(b"output"))
    assert story.stop.first is not None
    assert story.course.output == b"output"
    assert story.worker.finished is not None
