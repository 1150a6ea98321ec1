"""What a worker reports of the exception that ends it."""

from __future__ import annotations

import re
import signal
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import DistError

from elastic_harness.config.restart_rules import dotted_name
from elastic_harness.errors import ConfigError
from elastic_harness.messages import Raised

_NOT_THE_USERS = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
)


# How torch words it that a process of a DataLoader raised, left, or was killed (torch/_utils.py, DataLoader.cpp).
_RAISED_IN_LOADER = re.compile(r"Caught (\w+) in DataLoader worker process")
_LEFT_LOADER = re.compile(r"DataLoader worker \(pid.*exited unexpectedly")
_KILLED_LOADER = re.compile(r"DataLoader worker \(pid.*is killed by signal: ([^.]+)\.")
# All nodes are told of it. The traceback, which is in the log, has the whole.
_MESSAGE_LENGTH = 500
FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)


def report(exception: BaseException) -> Raised:
    """The message for the agent."""
    text = _text(exception)
    name, message, place = type(exception).__name__, (text.splitlines() or [""])[-1], _place(exception)
    types = tuple(dotted_name(each) for each in type(exception).__mro__[:-1])
    raised_in_loader = _RAISED_IN_LOADER.match(text)
    if raised_in_loader:
        # The traceback of that process is in the message; what cannot be made anew here is a RuntimeError.
        name, (known_as, _, said) = raised_in_loader[1], message.partition(": ")
        if known_as.rpartition(".")[2] == name:
            message, types = said, (known_as, *types)
        place = innermost([f"{file}:{line}" for file, line in FRAME.findall(text)]) or place
    if len(message) > _MESSAGE_LENGTH:
        message = f"{message[:_MESSAGE_LENGTH]} [...]"
    killed_by = _loader_killed_by(exception)
    return Raised(
        name=name,
        message=message,
        place=place,
        traceback="".join(traceback.format_exception(exception)),
        consequence=_is_consequence(exception),
        permanent=_is_permanent(exception),
        exit_code=_exit_code(exception),
        refused=tuple(exception.problems) if isinstance(exception, ConfigError) else (),
        types=types,
        in_loader=raised_in_loader is not None or killed_by is not None or _LEFT_LOADER.search(text) is not None,
        killed_by=killed_by,
    )


def _is_permanent(exception: BaseException) -> bool:
    try:
        return bool(getattr(exception, "permanent", False))
    except Exception:  # a property of the user's that is broken
        return False


def _text(exception: BaseException) -> str:
    try:
        return str(exception).strip()
    except Exception as error:  # A __str__ of the user's may be broken, too.
        return f"its message cannot be shown: {error!r}"


def _loader_killed_by(exception: BaseException | None) -> str | None:
    """The name of the signal that ended a loader process; torch raises that first, and then something vaguer."""
    while exception is not None:
        found = _KILLED_LOADER.search(_text(exception))
        if found:
            named = (each for each in signal.valid_signals() if signal.strsignal(each) == found[1])
            number = next(named, None)
            return found[1] if number is None else signal_name(number)
        exception = exception.__cause__ or exception.__context__
    return None


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_code(exception: BaseException) -> int | None:
    if not isinstance(exception, SystemExit):
        return None
    code = exception.code
    return code & 0xFF if isinstance(code, int) else 0 if code is None else 1  # as the system would cut it


def _place(exception: BaseException) -> str:
    """``file:line`` of the innermost frame outside installed packages, or else of the innermost one."""
    return place_of(traceback.extract_tb(exception.__traceback__))


def place_of(frames: traceback.StackSummary) -> str:
    """``file:line`` of the innermost frame that is the user's."""
    return innermost([f"{frame.filename}:{frame.lineno}" for frame in frames])


def innermost(places: Sequence[str]) -> str:
    """The last of some ``file:line`` that is the user's, or else the last one."""
    own = [place for place in places if not place.startswith((*_NOT_THE_USERS, "<"))]
    return (own or places or [""])[-1]


def _is_consequence(exception: BaseException) -> bool:
    """Whether the exception only says that a peer or the store is gone."""
    if isinstance(exception, DistError):
        return True
    if not isinstance(exception, RuntimeError):
        return False
    text = _text(exception)
    marks = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
        "gloo/",
    )
    return any(mark in text for mark in marks)
