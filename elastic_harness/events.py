"""The timeline of a run: one JSON object a line in ``events.jsonl``, in the order things happened.

Written by the agents only. Each line is one ``write`` to a file opened for appending, so that a line is whole; lines of
several nodes never mix where the file system appends at once, which NFS does not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Timeline:
    """Appends events to a file and reads them back.

    Args:
        path: the file; it is made with the first event.
        node: name of this node, written into every line.
    """

    def __init__(self, path: Path, node: str) -> None:
        self.path = path
        self._node = node

    def record(
        self, event: str, *, generation: int | None, step: int | None, world_size: int | None, **details: Any
    ) -> None:
        """Append one event.

        Args:
            event: its name, for example ``worker_failed``.
            generation: the worker group it belongs to, counted from 0; None before the first.
            step: optimizer steps finished when it happened, if known.
            world_size: number of workers of that generation.
            details: anything else that JSON can hold.
        """
        line = {
            "event": event,
            "time": time.time(),
            "node": self._node,
            "generation": generation,
            "step": step,
            "world_size": world_size,
            **details,
        }
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, ("\n" * self._cut_short() + json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)

    def _cut_short(self) -> bool:
        """Whether a crash ended the last line in the middle."""
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def last_step(self) -> int:
        """The step of the newest event that has one; 0 if there is none."""
        return next((event["step"] for event in reversed(list(self.read())) if event["step"] is not None), 0)

    def read(self, event: str | None = None) -> Iterator[dict[str, Any]]:
        """All events so far, or those of one name; a damaged line, such as one cut short by a crash, is left out."""
        if not self.path.exists():
            return
        with self.path.open(errors="replace") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if _is_event(entry) and event in (None, entry["event"]):
                    yield entry


def _is_event(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("event"), str)
        and isinstance(entry.get("time"), float)
        and isinstance(entry.get("step"), int | None)
    )
