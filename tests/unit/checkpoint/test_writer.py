"""Checkpoints are written in the background, one at a time, and what goes wrong is told."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_harness.checkpoint.files import Checkpoint, CheckpointFolder, Kind
from elastic_harness.checkpoint.writer import BackgroundWriter, Capture
from elastic_harness.errors import CheckpointError


class SlowFolder(CheckpointFolder):
    """Waits in each write until it may go on."""

    def __init__(self, location: Path) -> None:
        super().__init__(location)
        self.is_writing, self.goes_on = threading.Event(), threading.Event()

    def write(self, *args: Any, **kwargs: Any) -> Checkpoint:
        self.is_writing.set()
        self.goes_on.wait()
        return super().write(*args, **kwargs)


Make = Callable[..., Capture]


@pytest.fixture
def capture(tmp_path: Path) -> Make:
    def make(step: int, *kinds: Kind) -> Capture:
        path = tmp_path / f"state_{step}"
        path.write_bytes(b"state")
        return Capture(str(path), step, 0, kinds or ("step",), None, True)

    return make


def test_writer_when_writes_take_longer_than_captures_come_then_the_newest_and_the_best_are_written(
    tmp_path: Path, capture: Make
) -> None:
    folder = SlowFolder(tmp_path / "checkpoints")
    writer = BackgroundWriter(folder, 10, {})
    writer.submit(capture(1), 0)
    folder.is_writing.wait()
    for each in (capture(2), capture(3, "best"), capture(4), capture(5)):
        writer.submit(each, 0)
    folder.goes_on.set()
    assert writer.finish(lambda: math.inf)
    assert [each.step for each in writer.ended()] == [1, 3, 5]
    assert folder.names() == ["step_00000001.ckpt", "best_00000003.ckpt", "step_00000005.ckpt"]


def test_writer_when_there_is_no_room_for_the_next_then_this_one_counts_and_the_error_is_raised_where_it_is_asked_c06(
    tmp_path: Path, capture: Make
) -> None:
    class FullFolder(CheckpointFolder):
        def check_space(self, need: int) -> None:
            if self.names():
                raise CheckpointError("no room", permanent=True)

    writer = BackgroundWriter(FullFolder(tmp_path), 10, {})
    writer.submit(capture(1)._replace(last=False), 0)
    assert writer.finish(lambda: math.inf)
    assert [each.step for each in writer.ended()] == [1]
    with pytest.raises(CheckpointError, match="no room"):
        writer.ended()
    assert writer.ended() == []
