from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.node_memory import NodeMemory, write_state
from elastic_harness.checkpoint.states import RunStates
from elastic_harness.errors import CheckpointError
from elastic_harness.stop_signals import StopSignals


def test_states_when_a_stop_leaves_no_time_to_write_then_that_is_said_and_the_state_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, released = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        writing.set()
        released.wait()
        raise CheckpointError("too late", permanent=False)

    monkeypatch.setattr(CheckpointFolder, "write", hang)
    stop = StopSignals(grace_seconds=0.2)
    memory = NodeMemory(tmp_path, 0, tmp_path / ".states")
    held = write_state({}, 7, memory.places)
    states = RunStates(memory, CheckpointFolder(tmp_path / "checkpoints"), 2, {}, None, stop)
    threading.Thread(target=lambda: writing.wait() and stop.give_notice("a notice while it is written")).start()
    try:
        with pytest.raises(CheckpointError, match=r"preemption.grace_seconds=0.2 is too short .* raise it"):
            states.keep_newest(0, 0)
        assert memory.newest() == held
    finally:
        released.set()
        memory.drop()
