"""The agent gets the farthest state that any of its workers can hand over."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_harness.checkpoint.node_memory import step_of
from elastic_harness.local_worker import LocalWorker
from elastic_harness.messages import Assignment, HandedOver, Held, Message, Signalled
from elastic_harness.rescue import RescueThread, rescue


class HeldState:
    """Stands in for a boundary."""

    def __init__(self, step: int | None, state: Any = None) -> None:
        self._step, self._state = step, state

    def hold(self, step: int, seconds: float) -> int | None:
        return self._step

    def readable(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state(self) -> Any:
        return self._state


class Alive:
    """Stands in for the process of a worker."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.sentinel, self._end = os.pipe()

    def is_alive(self) -> bool:
        return True


Make = Callable[[int, Any], LocalWorker]


@pytest.fixture
def worker() -> Iterator[Make]:
    made: list[tuple[LocalWorker, RescueThread]] = []

    def make(rank: int, boundary: Any) -> LocalWorker:
        ours, theirs = Pipe()
        thread = RescueThread(theirs, theirs.send)
        thread.boundary = boundary
        thread.start()
        assignment = Assignment(0, rank, rank, 3, 0, 1, "", 0, None, -1, 0, (), "", "")
        made.append((LocalWorker(assignment, Alive(), ours, None), thread))  # type: ignore[arg-type]
        return made[-1][0]

    yield make
    signal.set_wakeup_fd(-1)
    for each, thread in made:
        each.connection.close()
        thread.join()


def read(source: LocalWorker) -> None:
    for message in source.messages():
        take(source, message)


def take(source: LocalWorker, message: Message) -> None:
    if isinstance(message, Held):
        source.held = message
    if isinstance(message, HandedOver):
        source.handed_over = message


def test_rescue_when_workers_hold_different_steps_then_the_farthest_is_kept(tmp_path: Path, worker: Make) -> None:
    workers = [worker(rank, HeldState(step, {"step": step})) for rank, step in enumerate((4, 5, None))]
    path = rescue(workers, read, [tmp_path], step=0, seconds=60.0)
    assert path is not None
    assert step_of(path) == 5
    assert torch.load(path, weights_only=True) == {"step": 5}


def test_rescue_when_the_first_cannot_write_its_state_then_the_next_one_is_asked(tmp_path: Path, worker: Make) -> None:
    cannot = HeldState(5, {"step": lambda: 5})  # it does not pickle
    workers = [worker(0, cannot), worker(1, HeldState(5, {"step": 5})), worker(2, cannot)]
    path = rescue(workers, read, [tmp_path], step=0, seconds=60.0)
    assert path is not None
    assert torch.load(path, weights_only=True) == {"step": 5}
    assert list(tmp_path.iterdir()) == [path], "nothing half written is left"


def test_rescue_when_nobody_has_a_state_then_there_is_none(tmp_path: Path, worker: Make) -> None:
    workers = [worker(0, None), worker(1, HeldState(None))]
    assert rescue(workers, read, [tmp_path], step=0, seconds=60.0) is None


def test_rescue_thread_when_the_worker_gets_a_stop_signal_then_the_agent_is_told(worker: Make) -> None:
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGCHLD)}
    try:
        source = worker(0, None)
        os.kill(os.getpid(), signal.SIGCHLD)
        os.kill(os.getpid(), signal.SIGTERM)
        assert source.connection.poll(60.0)
        assert list(source.messages()) == [Signalled(signal.SIGTERM)]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
