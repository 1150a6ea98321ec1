from __future__ import annotations

import json
from pathlib import Path

from elastic_harness.events import Timeline


def test_record_when_called_then_appends_a_line_with_all_keys(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl", "node0")
    timeline.record("run_started", generation=None, step=None, world_size=None)
    timeline.record("worker_failed", generation=1, step=7, world_size=2, rank=1)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run_started", "worker_failed"]
    assert {"event", "time", "node", "generation", "step", "world_size"} <= lines[0].keys()
    assert lines[1]["rank"] == 1
    assert lines[1]["node"] == "node0"


def test_read_when_a_crash_cut_the_last_line_then_the_others_are_read_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    timeline = Timeline(path, "node0")
    timeline.record("resumed", generation=0, step=1, world_size=1)
    with path.open("a") as file:
        file.write('{"event": "res')
    timeline.record("resumed", generation=1, step=2, world_size=1)
    assert [event["step"] for event in timeline.read("resumed")] == [1, 2]


def test_read_when_lines_are_damaged_then_they_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    timeline = Timeline(path, "node0")
    timeline.record("resumed", generation=0, step=7, world_size=1)
    with path.open("ab") as file:
        file.write(b"null\n\xff\xfe\n[1]\n{}\n")
    assert [event["step"] for event in timeline.read()] == [7]
    assert timeline.last_step() == 7


def test_read_when_there_is_no_file_then_there_are_no_events(tmp_path: Path) -> None:
    assert list(Timeline(tmp_path / "events.jsonl", "node0").read()) == []


def test_read_when_a_line_is_no_event_then_it_is_left_out(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl", "a")
    timeline.record("resumed", generation=0, step=7, world_size=1)
    with timeline.path.open("a") as file:
        file.write('{"event": "x", "step": "many"}\n{"event": 3, "time": 1.0, "step": 1}\n[]\n')
    assert [event["event"] for event in timeline.read()] == ["resumed"]
    assert timeline.last_step() == 7
