"""What an agent and its workers say to each other.

An agent hands every worker an ``Assignment``, a shared-memory ``Progress`` record and one end of a pipe. The worker
keeps the record up to date and sends the messages below through the pipe; the agent reads both. Through the pipe, too,
come the agent's orders.
"""

from __future__ import annotations

import ctypes
import signal
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from elastic_harness.checkpoint.writer import Capture

EXIT_MISSING_MAIN_GUARD = 90
"""Exit code of a worker that met a second ``fit()`` while importing the user's script: the script has no
``if __name__ == "__main__":``."""


STACKS_SIGNAL = signal.SIGRTMIN + 8
"""A worker that gets it writes the stacks of its threads into its log, whatever it is doing."""


class Phase(IntEnum):
    """What a worker is doing. It starts until the first batch is done: of the training, or of a validation."""

    STARTING = 0
    TRAINING = 1
    EVALUATING = 2
    FINISHED = 3


class Progress(ctypes.Structure):
    """How far a worker is; lives in memory that it shares with its agent.

    ``started`` is set by the first line of the worker's own code, after the import of the user's script. ``step``
    counts finished optimizer steps of the whole run, ``begun`` those that are finished or under way, ``beats`` whatever
    moves the worker on; ``logged`` is the number of the newest call that was written, see ``Curves``.
    """

    _fields_ = (
        ("started", ctypes.c_bool),
        ("beats", ctypes.c_long),
        ("phase", ctypes.c_int),
        ("epoch", ctypes.c_int),
        ("step", ctypes.c_long),
        ("begun", ctypes.c_long),
        ("logged", ctypes.c_long),
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
        resume_path: the most advanced state that this node can reach; None if there is none.
        resume_step: the run's own optimizer steps in it; -1 if there is none.
        logged: see ``Progress``, of rank 0 in the generation before; 0 if it was not on this node.
        node_memory: folders for states on this node, see ``NodeMemory.places``; empty where nothing is trained.
        lock_path: file that the worker holds locked while it lives.
        log_path: file that takes the worker's stdout and stderr.
    """

    generation: int
    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    store_host: str
    store_port: int
    resume_path: str | None
    resume_step: int
    logged: int
    node_memory: tuple[str, ...]
    lock_path: str
    log_path: str


class Resumed(NamedTuple):
    """The workers are about to train, from ``checkpoint`` or, if that is None, from the beginning."""

    checkpoint: str | None
    step: int


class Evaluated(NamedTuple):
    """The workers finished a validation; ``metrics`` are the trainer's callback metrics."""

    epoch: int
    step: int
    metrics: dict[str, float]


class StepTimes(NamedTuple):
    """Mean seconds that each worker took for its own part of a step of one logical rank, lately, by rank."""

    seconds: list[float]


class Raised(NamedTuple):
    """An exception ended the worker.

    ``types`` are the dotted names of its type and of those that it inherits from. ``consequence`` says that it only
    came of another worker's end, such as a connection closed by a peer. ``in_loader`` says that it came out of a
    process of a DataLoader, which ``killed_by`` ended if that is the name of a signal. ``exit_code`` is set for a
    ``SystemExit``. ``refused`` holds the sentences of a ``ConfigError``: only here, with model and data at hand, could
    the worker see that the input is bad.
    """

    name: str
    message: str
    place: str
    traceback: str
    consequence: bool
    permanent: bool
    exit_code: int | None
    refused: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    in_loader: bool = False
    killed_by: str | None = None


class Finished(NamedTuple):
    """The worker did its part; local rank 0 adds the bytes of a ``output.Output``."""

    output: bytes | None


class Signalled(NamedTuple):
    """The worker got a signal that asks the run to stop."""

    number: int


class Held(NamedTuple):
    """Answers ``Hold``: the worker's state has ``step`` finished steps, or there is None; it will not change."""

    step: int | None


class HandedOver(NamedTuple):
    """Answers ``HandOver``: the state is in the file; there is none if there is an ``error``."""

    path: str | None
    error: str | None = None


Message = Resumed | Capture | Evaluated | StepTimes | Raised | Finished | Signalled | Held | HandedOver


class Hold(NamedTuple):
    """Order of the agent: wait up to ``seconds`` for ``step`` to be finished, then let nothing change."""

    step: int
    seconds: float


class HandOver(NamedTuple):
    """Order of the agent: write the state that is held, see ``write_state``."""

    step: int
    places: tuple[str, ...]


class Dismiss(NamedTuple):
    """Order of the agent: all have finished, so nobody will ask for a state any more."""


Order = Hold | HandOver | Dismiss


def as_message(received: Any) -> Message:
    """The message that came out of a pipe.

    Raises:
        TypeError: something else came out.
    """
    if not isinstance(received, Message):
        raise TypeError(f"not a message of a worker: {received!r}")
    return received
