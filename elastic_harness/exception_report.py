"""What a worker reports of the exception that ends it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from torch.distributed import DistError

from elastic_harness.errors import ConfigError
from elastic_harness.messages import Raised

_NOT_THE_USERS = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
)


def report(exception: BaseException) -> Raised:
    """The message for the agent."""
    try:
        lines = str(exception).strip().splitlines() or [""]
    except Exception as error:  # A __str__ of the user's may be broken, too.
        lines = [f"its message cannot be shown: {error!r}"]
    return Raised(
        name=type(exception).__name__,
        message=lines[-1],
        place=_place(exception),
        traceback="".join(traceback.format_exception(exception)),
        consequence=_is_consequence(exception),
        permanent=bool(getattr(exception, "permanent", False)),
        exit_code=_exit_code(exception),
        refused=tuple(exception.problems) if isinstance(exception, ConfigError) else (),
    )


def _exit_code(exception: BaseException) -> int | None:
    if not isinstance(exception, SystemExit):
        return None
    code = exception.code
    return code if isinstance(code, int) else 0 if code is None else 1


def _place(exception: BaseException) -> str:
    """``file:line`` of the innermost frame outside installed packages, or else of the innermost one."""
    return place_of(traceback.extract_tb(exception.__traceback__))


def place_of(frames: traceback.StackSummary) -> str:
    """``file:line`` of the innermost frame that is the user's."""
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    innermost = (own or list(frames))[-1:]
    return f"{innermost[0].filename}:{innermost[0].lineno}" if innermost else ""


def _is_consequence(exception: BaseException) -> bool:
    """Whether the exception only says that a peer or the store is gone."""
    if isinstance(exception, DistError):
        return True
    text = str(exception)
    marks = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
        "gloo",
    )
    return isinstance(exception, RuntimeError) and any(mark in text for mark in marks)
