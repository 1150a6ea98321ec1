"""What runs in a worker: take a place in the generation, choose where to resume, call Lightning, send the result.

A worker is forked from the zygote. It leads a process group of its own, so that its loader processes can be ended
with it, and ends itself when its agent is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ProgressBar
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.states import TrainerFn
from torch.distributed import TCPStore

from elastic_harness import exception_report, loops, output, zygote
from elastic_harness.checkpoint import election
from elastic_harness.checkpoint.boundary import Boundary
from elastic_harness.checkpoint.callback import ElasticCheckpoint
from elastic_harness.checkpoint.plain_state import converted, refuse_what_does_not_load
from elastic_harness.curves import Curves
from elastic_harness.loops import Next
from elastic_harness.messages import (
    STACKS_SIGNAL,
    Assignment,
    Finished,
    Message,
    Phase,
    Progress,
)
from elastic_harness.process_state import ProcessState
from elastic_harness.reporter import Reporter
from elastic_harness.rescue import RescueThread
from elastic_harness.run_folder import hold_lock
from elastic_harness.stop_signals import STOP_SIGNALS

# How long a loader process that broke its connections may take to be gone.
_LOADER_SECONDS = 1.0
# How long the on_exception hooks of a worker may take.
_HOOK_SECONDS = 10.0


def main(
    assignment: Assignment,
    payload: ctypes.Array[ctypes.c_char],
    progress: Progress,
    connection: Connection,
    state: ProcessState,
) -> None:
    """Entry point of a worker process.

    Args:
        assignment: the worker's place.
        payload: pickle of ``(trainer, function, args, kwargs)``.
        progress: the record shared with the agent.
        connection: takes the messages for the agent.
        state: see ``ProcessState``.
    """
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)  # from here on it does not end the process
    progress.started = True
    _detach(assignment)
    send = _one_at_a_time(connection.send)
    rescuer = RescueThread(connection, send)
    rescuer.start()
    trainer: pl.Trainer | None = None
    try:
        state.restore()
        trainer, function, args, kwargs = pickle.loads(memoryview(payload))
        result = _run(trainer, function, args, kwargs, assignment, progress, send, rescuer)
    except BaseException as exception:
        # torch has a handler that raises once more when a loader process ends, wherever this one is by then.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _leave(_cause_of(exception), trainer, send, rescuer)
    progress.phase = Phase.FINISHED
    send(Finished(result))
    # Another one may still fail, and then this one's state is wanted.
    rescuer.dismissed.wait()


def _detach(assignment: Assignment) -> None:
    """Own process group, output into the log file, and an end when the agent ends."""
    os.setpgid(0, 0)
    for number in STOP_SIGNALS:
        # The rescue thread tells the agent, which stops the run.
        signal.signal(number, lambda *_: None)
    # No signal comes to a child before it is one of its own: it would be taken for this process's.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS),
        after_in_child=_as_any_process,
    )
    # Ctrl-C is the agent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(assignment.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(log, descriptor)
        if getattr(sys, name) is None:  # The program was started with the stream closed.
            setattr(sys, name, os.fdopen(descriptor, "w", closefd=False))
    os.close(log)
    hold_lock(assignment.lock_path)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.writelines(zygote.failed_preloads)
    zygote.die_with_it()
    threading.Thread(target=_end_with_agent, name="end-with-agent", daemon=True).start()


def _as_any_process() -> None:
    """A child that the user's code forks from a worker ends of a signal, and tells nobody."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _end_with_agent() -> None:
    """The first to notice, unless another thread holds the interpreter; loader processes end with this one."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)


def _run(
    trainer: pl.Trainer,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    assignment: Assignment,
    progress: Progress,
    send: Callable[[Message], None],
    rescuer: RescueThread,
) -> bytes | None:
    store = TCPStore(assignment.store_host, assignment.store_port, is_master=False, timeout=timedelta(minutes=5))
    _silence()
    trainer.strategy.join(assignment, store)  # type: ignore[attr-defined]
    trainer.strategy.prepare(trainer)  # type: ignore[attr-defined]
    callbacks = _take_out_of_the_path(trainer)
    bound = signature(function).bind(*args, **kwargs)
    path = None
    if trainer.state.fn == TrainerFn.FITTING:
        path, step = election.elect(assignment, store, trainer.strategy.root_device)
        if path is not None:
            bound.arguments["ckpt_path"] = path
            if step >= 0:
                bound.arguments["weights_only"] = True
        curves = Curves(trainer, progress, assignment.logged)
        if assignment.generation > 0:
            curves.drop_from(max(step, 0))
        if trainer.strategy.is_exact:  # type: ignore[attr-defined]
            trainer.strategy.curves = curves  # type: ignore[attr-defined]
        _set_boundaries(trainer, assignment, progress, send, rescuer)
    callbacks.insert(0, Reporter(progress, path, send if assignment.local_rank == 0 else _drop))
    results = function(*bound.args, **bound.kwargs)
    collected = output.collect(trainer, results)
    return collected.to_bytes() if assignment.local_rank == 0 else None


def _set_boundaries(
    trainer: pl.Trainer,
    assignment: Assignment,
    progress: Progress,
    send: Callable[[Message], None],
    rescuer: RescueThread,
) -> None:
    """Have what a boundary is for happen at each."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    (checkpoint,) = (callback for callback in callbacks if isinstance(callback, ElasticCheckpoint))
    boundary = Boundary(trainer) if checkpoint.rescue else None
    rescuer.boundary = trainer.strategy.boundary = boundary  # type: ignore[attr-defined]
    curves: Curves | None = trainer.strategy.curves  # type: ignore[attr-defined]
    places = [Path(each) for each in assignment.node_memory]
    loads_again = False

    def on_boundary(following: Next) -> None:
        nonlocal loads_again
        if curves is not None:
            curves.reach_boundary()
        kinds = checkpoint.due(trainer, following)
        if boundary is not None:
            boundary.reach(following)
        progress.step = trainer.global_step
        if (loads_again or boundary is None) and not kinds:
            return
        state = boundary.state() if boundary else trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if not loads_again:  # which is known for all of them once it is for one
            refuse_what_does_not_load(converted(state))
            loads_again = True
        if kinds and trainer.is_global_zero:
            send(checkpoint.capture(state, kinds, places, last=following is Next.END))

    loops.install(trainer, on_boundary)


def _one_at_a_time(send: Callable[[Message], None]) -> Callable[[Message], None]:
    lock = threading.Lock()

    def locked(message: Message) -> None:
        with lock:
            send(message)

    return locked


def _silence() -> None:
    """Keep warnings out of the log that say nothing of the user's run."""
    # Lightning 2.6 asks torch's pytree in the way of older versions; nobody but Lightning can change that.
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
    # The harness evaluates on all workers on purpose.
    warnings.filterwarnings("ignore", message=".*Using `DistributedSampler` with the dataloaders.*")


def _take_out_of_the_path(trainer: pl.Trainer) -> list[Callback]:
    """Remove what the agent does instead: progress bars, Lightning's signal handlers and its broadcast every step.

    Returns:
        The Trainer's list of callbacks.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return callbacks


def _drop(message: Message) -> None:
    """One worker of each node tells its agent of the run."""


def _cause_of(exception: BaseException) -> BaseException:
    """The exception, or what torch says of a loader process whose end led to it."""
    # A connection that broke may be one to a loader process, which is not gone yet.
    deadline = time.monotonic() + (_LOADER_SECONDS if isinstance(exception, (ConnectionError, EOFError)) else 0.0)
    while True:
        try:
            torch._C._error_if_any_worker_fails()
        except RuntimeError as loader_ended:
            return loader_ended.with_traceback(exception.__traceback__)
        if time.monotonic() >= deadline:
            return exception
        time.sleep(0.01)


def _leave(
    exception: BaseException, trainer: pl.Trainer | None, send: Callable[[Message], None], rescuer: RescueThread
) -> NoReturn:
    """Let the ``on_exception`` hooks run, report, and wait for the agent, which may want the state of the last step."""
    if rescuer.boundary is not None:
        rescuer.boundary.give_up()
    raised = exception_report.report(exception)
    sys.stderr.write(raised.traceback)

    def end() -> None:
        send(raised)
        sys.stdout.flush()
        sys.stderr.flush()
        while True:
            signal.pause()

    if trainer is not None and not raised.consequence:
        # A hook may wait for a peer that will never come.
        timer = threading.Timer(_HOOK_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            call._interrupt(trainer, exception)
        except Exception:
            traceback.print_exc()
        timer.cancel()
    end()
    raise AssertionError("unreachable")
