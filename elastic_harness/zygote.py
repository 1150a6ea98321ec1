"""The zygote: Python's forkserver, with everything a worker needs imported before the first one is forked.

It is forked off a process that has only imported by then (``start_from_here``), or is a new process that imports by
itself (``start``). Signals that go to the whole process group must not take it, and no tensor operation may run in
it, since threads and CUDA contexts do not survive a fork.

This module is the one preload module of a new process: the forkserver swallows every ImportError of a preload, does
not look beside the script when it is started from another folder, and cannot preload ``__main__``
(https://github.com/python/cpython/issues/126631). Imported by the forkserver, which finds ``PRELOAD_VARIABLE`` in its
environment, it prepares that process. See docs/decisions/0002-forkserver.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

from elastic_harness import stop_signals
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
IF_INSTALLED = ("adlfs", "gcsfs", "s3fs")
"""Lightning imports these, if they are there, to see whether a TensorBoard folder is on one of them."""


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


def start_from_here(modules: Sequence[str] = ()) -> None:
    """``start``, by imports in this process, which needs them as well, and a fork; returns when all is imported.

    To be called before anything but imports has happened here. With other threads about it is only ``start``.
    """
    if pid() is not None or threading.active_count() > 1:
        start(modules)
        return
    stop_signals.hold()
    try:
        _import_all(modules)
    finally:
        stop_signals.release()
    context().set_forkserver_preload([])
    resource_tracker.ensure_running()  # a new interpreter, as ever
    with mock.patch.object(util, "spawnv_passfds", _fork_in_place_of_spawn):
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


def wake() -> None:
    """Let a stopped zygote go on, which tells of the ends of its children."""
    number = pid()
    if number is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)


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
    os.environ[PRELOAD_VARIABLE] = json.dumps({"sys_path": sys.path, "modules": list(modules)})
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


def _fork_in_place_of_spawn(_: str, arguments: Sequence[str], passed: Sequence[int]) -> int:
    """For ``multiprocessing.util.spawnv_passfds``: what the new interpreter would run is run in a fork of this one."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or every child would write what is left in the buffer
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    number = os.fork()
    if number == 0:
        try:
            _ignore_stop_signals()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            for descriptor in {int(each.name) for each in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *passed}:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # it is held here
            exec(arguments[-1], {})
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return number


def _ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _preload(sys_path: list[str], modules: list[str]) -> None:
    _ignore_stop_signals()
    sys.path[:] = sys_path
    _import_all(modules)


def _import_all(modules: Sequence[str]) -> None:
    _import([*ALWAYS, *filter(importlib.util.find_spec, IF_INSTALLED)])
    torch: Any = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)  # what a module computes when it is imported starts no threads then
    _import(modules)
    if torch:
        torch.set_num_threads(threads)


def _import(modules: Sequence[str]) -> None:
    # Looking for garbage meanwhile takes a fifth of the time; afterwards it would touch what all processes share.
    enabled = gc.isenabled()
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit):
            # The parent meets the same error when it builds the run, and reports it.
            failed_preloads.append(f"{module} could not be imported beforehand:\n{traceback.format_exc()}")
    gc.freeze()
    if enabled:
        gc.enable()


_orders = os.environ.pop(PRELOAD_VARIABLE, None)
if _orders is not None:
    _preload(**json.loads(_orders))
