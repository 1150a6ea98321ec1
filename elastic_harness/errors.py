"""Every error the harness raises on purpose, and the exit code each one ends the process with.

HarnessError                1
+-- ConfigError             2    bad configuration or input; no worker was started
+-- CheckpointError         1    a checkpoint cannot be written
+-- TrainingFailed          1    failed for good: permanent error, crash loop, restart budget spent
+-- ClusterError            144  rendezvous lost or timed out; the same command may be tried again
    +-- FencedError         144  another generation has taken over from this one
Stopped (SystemExit)        129, 130, 143: stopped by SIGHUP, SIGINT, or any other stop signal or notice; resumable
"""

from __future__ import annotations

import signal
from collections.abc import Sequence


class HarnessError(Exception):
    """Base of all errors with a message meant for the user: it is shown without a traceback."""

    exit_code = 1


class ConfigError(HarnessError):
    """One or more mistakes in the configuration or the input data.

    Args:
        problems: one sentence a mistake, each naming the key, the value, the rule and the fix.
    """

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class CheckpointError(HarnessError):
    """A checkpoint cannot be written; those that are there are as they were.

    Args:
        message: path, reason and fix.
        permanent: it would happen again, as on a full disk, so the restart policy must not try.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class TrainingFailed(HarnessError):  # noqa: N818  (it is an outcome, and reads as one)
    """The workers failed and the restart policy does not allow another generation.

    Args:
        summary: what failed, where, why it was not retried, and where the log is.
        traceback: of the exception that caused it, if it was one.
    """

    exit_code = 1

    def __init__(self, summary: str, traceback: str = "") -> None:
        self.summary = summary
        super().__init__(f"{traceback.rstrip()}\n{summary}".lstrip())


class ClusterError(HarnessError):
    """The rendezvous was lost or timed out."""

    exit_code = 144


class FencedError(ClusterError):
    """A process of an older generation wanted to write for the run, which another generation has taken over."""


class Stopped(SystemExit):
    """A signal or a notice asked the run to stop; it can be resumed. Uncaught, it ends the process with its exit code.

    Not an Exception, since Hydra stores those of a job and goes on with the sweep; nor a KeyboardInterrupt,
    which Lightning turns into exit code 1.

    Args:
        signum: the signal that was received; SIGTERM for a notice.
        notice: who said that this node will go away, and why, if it was not a signal.
    """

    def __init__(self, signum: int, notice: str | None = None) -> None:
        self.signal = signal.Signals(signum)
        self.notice = notice
        self.exit_code = 128 + (signum if signum in (signal.SIGHUP, signal.SIGINT) else signal.SIGTERM)
        super().__init__(self.exit_code)
