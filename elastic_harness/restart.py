"""Which failures are retried, and when: a pure decision from the list of failures so far, and nothing else."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from elastic_harness.config import BackoffConfig, RestartConfig


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong in one generation.

    Args:
        rank: global rank of the worker; None when it was the zygote.
        kind: ``exception`` (``name`` is its type), ``signal`` (``name`` is the signal's), ``exit`` (the worker
            left with ``exit_code`` and no exception), ``hang`` (``name`` is what it was doing) or ``zygote`` (the
            process that forks the workers died).
        name: see ``kind``.
        message: the exception's last line, or how long a hang lasted.
        place: ``file:line`` of the innermost frame of the user's own code, for exceptions and hangs.
        step: optimizer steps finished by then.
        made_progress: at least one step was finished since the start, in this generation or an earlier one.
        permanent: the exception says of itself that a retry is useless (its ``permanent`` attribute).
        types: dotted names of the exception's type and of those it inherits from; builtin ones by their plain name.
        exit_code: the worker's exit code; negative for a signal.
        in_loader: it happened in a process of a DataLoader.
        out_of_memory: the kernel killed a process for lack of memory meanwhile.
        node: name of the node, if there are others.
        time: of the failure, in seconds since the epoch.
        traceback: the formatted traceback, for exceptions.
        log: path of the worker's log file.
        consequence: nothing is known but that a peer, perhaps on another node, is gone.
    """

    rank: int | None
    kind: Literal["exception", "signal", "exit", "hang", "zygote"]
    name: str
    message: str = ""
    place: str = ""
    step: int = 0
    made_progress: bool = False
    permanent: bool = False
    types: tuple[str, ...] = ()
    exit_code: int = 1
    in_loader: bool = False
    out_of_memory: bool = False
    node: str = ""
    time: float = 0.0
    traceback: str = ""
    log: str = ""
    consequence: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Failure:
        """The failure that another node told of; what it told besides is left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{**{key: values[key] for key in values if key in known}, "types": tuple(values["types"])})

    def facts(self) -> dict[str, Any]:
        """What the timeline keeps of it; the traceback is in the log."""
        return {
            each: getattr(self, each) for each in ("rank", "kind", "name", "place", "exit_code", "consequence", "log")
        }

    def describe(self) -> str:
        """One plain sentence without a full stop."""
        who = f"rank {self.rank}" + (f" on {self.node}" if self.node else "")
        whose = f"a loader process of {who}" if self.in_loader else who
        at = f" at {self.place}" if self.place else ""
        match self.kind:
            case "zygote":
                return "the process that forks the workers (the zygote) died"
            case "signal":
                return f"{whose} was killed by {self.name}{self._memory_hint()}"
            case "exit":
                return f"{who} left early with exit code {self.exit_code}"
            case "hang":
                return f"{who} stood still {self.name}{at} {self.message}"
            case "exception":
                return f"{whose} raised {self.name}{at}: {self.message}"

    def _memory_hint(self) -> str:
        if self.name != signal.SIGKILL.name:
            return ""
        return ": the kernel ran out of memory" if self.out_of_memory else ", perhaps out of memory"

    @property
    def was_killed(self) -> bool:
        """Whether something from outside ended the worker, so that nothing is said about the code."""
        return self.kind in ("signal", "hang", "zygote")


@dataclass(frozen=True)
class Decision:
    """What to do about the newest failure.

    Args:
        restart: start another generation.
        reason: why not, or how much of the budget is used; a phrase for the log.
        delay: seconds to wait before that.
    """

    restart: bool
    reason: str
    delay: float = 0.0


# No wait grows any more after so many times.
_GROWTHS = 1000


class RestartPolicy:
    """Decides from the failures of the whole run whether the newest one is retried.

    Args:
        config: the policy's name, budget and backoff.
    """

    def __init__(self, config: RestartConfig) -> None:
        self._config = config

    def decide(self, failures: Sequence[Failure]) -> Decision:
        """The decision about ``failures[-1]``.

        Args:
            failures: one a failed generation, oldest first, the newest included; never empty.
        """
        reason = self._not_retried(failures)
        if reason is not None:
            return Decision(False, reason)
        counted, allowed = self._counted(failures), self._config.max_restarts
        if 0 <= allowed < counted:
            return Decision(False, f"restart budget spent ({allowed} of {allowed}): restart.max_restarts")
        budget = f" of {allowed}" if allowed >= 0 else ""
        return Decision(True, f"restart {counted}{budget}", _delay(self._config.backoff, failures))

    def _not_retried(self, failures: Sequence[Failure]) -> str | None:
        """Why the newest failure is not retried, whatever the budget; None if it may be."""
        newest, config = failures[-1], self._config
        if config.policy == "never":
            return "restart.policy=never"
        if newest.permanent:
            return "it would happen again"
        permanent = [name for name in config.permanent_errors if name in newest.types]
        if permanent:
            return f"restart.permanent_errors has {permanent[0]}"
        if config.policy == "exit_code" and not self._has_retryable_code(newest):
            return f"restart.policy=exit_code does not retry exit code {newest.exit_code}"
        if newest.kind == "exception" and not newest.made_progress:
            return "an exception before the first step of a start is not retried"
        if len(failures) > 1 and _same_exception(failures[-2], newest):
            return f"crash loop: the same exception twice in a row at step {newest.step}"
        return None

    def _has_retryable_code(self, failure: Failure) -> bool:
        code = failure.exit_code
        return failure.was_killed or code >= 128 or code in self._config.retryable_exit_codes

    def _counted(self, failures: Sequence[Failure]) -> int:
        """How many failures the budget has to bear: those within the window whose refund is not earned yet."""
        newest, config = failures[-1], self._config

        def counts(failure: Failure) -> bool:
            expired = config.window_seconds is not None and newest.time - failure.time > config.window_seconds
            refunded = 0 < config.refund_after_steps <= newest.step - failure.step
            return not expired and not refunded

        return sum(map(counts, failures))


def _delay(backoff: BackoffConfig, failures: Sequence[Failure]) -> float:
    """Seconds before a restart: none after new steps, then more and more as long as there are none.

    The jitter comes from the failure itself, so that all nodes agree on it and jobs that failed together differ.
    """
    newest, pairs = failures[-1], itertools.pairwise(reversed(failures))
    stuck = sum(1 for _ in itertools.takewhile(lambda pair: pair[0].step <= pair[1].step, pairs))
    if not stuck:
        return 0.0
    seconds = backoff.initial_seconds
    for _ in range(min(stuck - 1, _GROWTHS)):
        seconds = min(backoff.max_seconds, backoff.factor * seconds)
    return seconds * (1.0 + backoff.jitter * random.Random(f"{newest.time} {newest.rank}").uniform(-1.0, 1.0))


def _same_exception(first: Failure, second: Failure) -> bool:
    def identity(failure: Failure) -> tuple[str, str, int]:
        return failure.name, failure.place, failure.step

    return first.kind == second.kind == "exception" and identity(first) == identity(second)
