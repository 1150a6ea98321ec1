"""What an agent and its workers say to each other.

An agent hands every worker an ``Assignment``, a shared-memory ``Progress`` record and one end of a pipe. The worker
keeps the record up to date and sends the messages below through the pipe; the agent reads both.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

EXIT_MISSING_MAIN_GUARD = 90
"""Exit code of a worker that met a second ``fit()`` while importing the user's script: the script has no
``if __name__ == "__main__":``."""


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    TRAINING = 1
    EVALUATING = 2
    FINISHED = 3


class Progress(ctypes.Structure):
    """How far a worker is; lives in memory that it shares with its agent.

    ``started`` is set by the first line of the worker's own code, after the import of the user's script. ``step``
    counts finished optimizer steps of the whole run.
    """

    _fields_ = (
        ("started", ctypes.c_bool),
        ("phase", ctypes.c_int),
        ("epoch", ctypes.c_int),
        ("step", ctypes.c_long),
        ("total_steps", ctypes.c_long),
        ("loss", ctypes.c_double),
    )


@dataclass(frozen=True)
class Assignment:
    """A worker's place in its generation.

    Args:
        generation: number of the worker group in this run, from 0.
        rank: global rank.
        local_rank: rank on this node; also the index of the device.
        world_size: workers of the generation on all nodes.
        node_rank: rank of the node.
        num_nodes: number of nodes.
        store_host: address of the generation's TCPStore, hosted by the agent of node rank 0.
        store_port: port of it.
        checkpoint_dir: folder or URL of the run's checkpoints.
        lock_path: file that the worker holds locked while it lives.
        log_path: file that takes the worker's stdout and stderr.
        resume_from: checkpoint to start from when the run has none of its own yet.
    """

    generation: int
    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    store_host: str
    store_port: int
    checkpoint_dir: str
    lock_path: str
    log_path: str
    resume_from: str | None = None


class Resumed(NamedTuple):
    """Rank 0 is about to train, from ``checkpoint`` or, if that is None, from the beginning."""

    checkpoint: str | None
    step: int


class Saved(NamedTuple):
    """Rank 0 put a checkpoint safely under its final name."""

    checkpoint: str
    step: int


class SetAside(NamedTuple):
    """Rank 0 found a damaged checkpoint on its way to one that is whole, and gave it another name."""

    checkpoint: str
    reason: str
    moved_to: str


class Evaluated(NamedTuple):
    """Rank 0 finished a validation; ``metrics`` are the trainer's callback metrics."""

    epoch: int
    step: int
    metrics: dict[str, float]


class Raised(NamedTuple):
    """An exception ended the worker.

    ``consequence`` says that it only came of another worker's end, such as a connection closed by a peer.
    ``exit_code`` is set for a ``SystemExit``. ``refused`` holds the sentences of a ``ConfigError``: only here, with
    model and data at hand, could the worker see that the input is bad.
    """

    name: str
    message: str
    place: str
    traceback: str
    consequence: bool
    permanent: bool
    exit_code: int | None
    refused: tuple[str, ...] = ()


class Finished(NamedTuple):
    """The worker did its part; rank 0 adds the bytes of a ``worker.Output``."""

    output: bytes | None


Message = Resumed | Saved | SetAside | Evaluated | Raised | Finished


def as_message(received: Any) -> Message:
    """The message that came out of a pipe.

    Raises:
        TypeError: something else came out.
    """
    if not isinstance(received, Message):
        raise TypeError(f"not a message of a worker: {received!r}")
    return received
