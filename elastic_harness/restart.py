"""Which failures are retried: a pure decision from the list of failures so far, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elastic_harness.config import RestartConfig


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong in one generation.

    Args:
        rank: global rank of the worker; None when it was the zygote.
        kind: ``exception`` (``name`` is its type), ``signal`` (``name`` is the signal's), ``exit`` (the worker
            left with ``exit_code`` and no exception) or ``zygote`` (the process that forks the workers died).
        name: see ``kind``.
        message: the exception's last line, or empty.
        place: ``file:line`` of the innermost frame of the user's own code, for exceptions.
        step: optimizer steps finished by then.
        made_progress: at least one step was finished since the start, in this generation or an earlier one.
        permanent: the exception says of itself that a retry is useless (its ``permanent`` attribute).
        exit_code: the worker's exit code; negative for a signal.
        traceback: the formatted traceback, for exceptions.
        log: path of the worker's log file.
        consequence: nothing is known but that a peer, perhaps on another node, is gone.
    """

    rank: int | None
    kind: Literal["exception", "signal", "exit", "zygote"]
    name: str
    message: str = ""
    place: str = ""
    step: int = 0
    made_progress: bool = False
    permanent: bool = False
    exit_code: int = 1
    traceback: str = ""
    log: str = ""
    consequence: bool = False

    def describe(self) -> str:
        """One plain sentence without a full stop."""
        who = f"rank {self.rank}"
        match self.kind:
            case "zygote":
                return "the process that forks the workers (the zygote) died"
            case "signal":
                hint = ", perhaps out of memory" if self.name == signal.SIGKILL.name else ""
                return f"{who} was killed by {self.name}{hint}"
            case "exit":
                return f"{who} left early with exit code {self.exit_code}"
            case "exception":
                at = f" at {self.place}" if self.place else ""
                return f"{who} raised {self.name}{at}: {self.message}"


@dataclass(frozen=True)
class Decision:
    """What to do about the newest failure.

    Args:
        restart: start another generation.
        reason: why not, or how much of the budget is used; a phrase for the log.
    """

    restart: bool
    reason: str


class RestartPolicy:
    """Decides from the failures of the whole run whether the newest one is retried.

    Args:
        config: the policy's name and budget.
    """

    def __init__(self, config: RestartConfig) -> None:
        self._config = config

    def decide(self, failures: Sequence[Failure]) -> Decision:
        """The decision about ``failures[-1]``.

        Args:
            failures: one a failed generation, oldest first, the newest included; never empty.
        """
        newest = failures[-1]
        if self._config.policy == "never":
            return Decision(False, "restart.policy=never")
        if newest.permanent:
            return Decision(False, "it would happen again")
        if newest.kind == "exception" and not newest.made_progress:
            return Decision(False, "an exception before the first step of a start is not retried")
        if len(failures) > 1 and _same_exception(failures[-2], newest):
            return Decision(False, f"crash loop: the same exception twice in a row at step {newest.step}")
        restarts = len(failures)
        if restarts > self._config.max_restarts:
            spent = self._config.max_restarts
            return Decision(False, f"restart budget spent ({spent} of {spent}): restart.max_restarts")
        return Decision(True, f"restart {restarts} of {self._config.max_restarts}")


def _same_exception(first: Failure, second: Failure) -> bool:
    def identity(failure: Failure) -> tuple[str, str, int]:
        return failure.name, failure.place, failure.step

    return first.kind == second.kind == "exception" and identity(first) == identity(second)
