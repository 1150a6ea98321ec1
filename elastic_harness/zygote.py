"""The zygote: Python's forkserver, with everything a worker needs imported before the first one is forked.

This module is the forkserver's one preload module. Imported anywhere else it only offers ``start``; imported by
the forkserver (which finds ``PRELOAD_VARIABLE`` in its environment) it prepares that process: signals that go
to the whole process group must not take it, and no tensor operation may run in it, since threads and CUDA
contexts do not survive a fork.

Why a preload of our own: the forkserver swallows every ImportError of a preload, does not look beside the script
when it is started from another folder, and cannot preload ``__main__``
(https://github.com/python/cpython/issues/126631). See docs/decisions/0002-forkserver.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess

from elastic_harness.stop_signals import STOP_SIGNALS

EXIT_CODE_OF_ORPHANS = 255
"""What multiprocessing gives as the exit code of workers whose zygote died, while they may live on."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

PRELOAD_VARIABLE = "ELASTIC_HARNESS_PRELOAD"
ALWAYS = (
    "torch",
    "torch.utils.tensorboard",
    "torchvision",
    "pytorch_lightning",
    "elastic_harness.strategy",
    "elastic_harness.entry",
    "elastic_harness.worker",
)


class ZygoteDiedError(Exception):
    """The zygote died while a process was being started."""


failed_preloads: list[str] = []
"""In the zygote and its children: what could not be imported beforehand, with tracebacks; each worker logs it."""


def context() -> ForkServerContext:
    """The multiprocessing context that forks processes from the zygote."""
    return multiprocessing.get_context("forkserver")


def start(modules: Sequence[str] = ()) -> None:
    """Start the zygote unless it runs; returns at once, while the zygote is still importing.

    Args:
        modules: modules to import in it beside torch, Lightning and the harness, such as the model's. Those of
            the first call count: what a running zygote has imported cannot be changed.
    """
    context().set_forkserver_preload([__name__])
    with _instructions(modules):
        forkserver.ensure_running()


def fork(process: ForkServerProcess, modules: Sequence[str] = ()) -> None:
    """Start a process of ``context()``; it is forked from the zygote.

    Args:
        process: not yet started.
        modules: as for ``start``: a zygote that died unnoticed is started again.

    Raises:
        ZygoteDiedError: the zygote died while it was asked.
    """
    number = pid()
    try:
        if number is not None:
            os.kill(number, signal.SIGCONT)  # a stopped one would never answer
        with _instructions(modules):
            process.start()
    except (EOFError, ConnectionError, ProcessLookupError) as error:
        raise ZygoteDiedError from error


def stop() -> None:
    """End the zygote at once, also in the middle of its imports."""
    number = pid()
    if number is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


@contextlib.contextmanager
def _instructions(modules: Sequence[str]) -> Iterator[None]:
    """What a zygote that is started meanwhile finds in its environment."""
    os.environ[PRELOAD_VARIABLE] = json.dumps({"sys_path": sys.path, "modules": [*ALWAYS, *modules]})
    try:
        yield
    finally:
        del os.environ[PRELOAD_VARIABLE]


def die_with_it() -> None:
    """In a child of the zygote: have the kernel kill this process when the zygote ends.

    The zygote ends when the process that started it does, as long as no child of it keeps its pipe open.
    """
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def importing_script() -> bool:
    """Whether this is a worker that is still importing the user's script, as every worker does first."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def pid() -> int | None:
    """Process id of the zygote, if one was started."""
    return forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined,no-any-return]


def is_alive() -> bool:
    """Whether the zygote runs. One that just closed its pipes is given a moment to be gone."""
    number = pid()
    if number is None:
        return False
    for _ in range(100):
        if os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.002)
    return True


def _preload(sys_path: list[str], modules: list[str]) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = sys_path
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            # The parent meets the same error when it builds the run, and reports it.
            failed_preloads.append(f"{module} could not be imported beforehand:\n{traceback.format_exc()}")


_orders = os.environ.pop(PRELOAD_VARIABLE, None)
if _orders is not None:
    _preload(**json.loads(_orders))
