"""What a worker keeps of its last finished step, so that it can hand it over at any moment until the next update."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from elastic_harness.loops import Next

# Larger tensors, such as averaged weights in the state of a callback, are not copied: what changes them does so before
# the boundary. Whether that held is seen when they are handed over.
_COPIED_BYTES = 1 << 20
# A step that takes longer than this, and than so many steps, may be waiting for a peer that is gone.
_STUCK_SECONDS = 2.0
_STUCK_STEPS = 4.0
_POLL_SECONDS = 0.0002


class Boundary:
    """The state at the last boundary: what is small copied, weights and optimizer state as they are.

    Those change only in an update, and ``updating`` keeps an update and a handing over apart: the training thread
    holds it from the moment the optimizer goes ahead to the next boundary, the rescue thread from the moment it takes
    over, for good.

    Args:
        trainer: the Trainer of this worker.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._updating = threading.Lock()
        self._reached = threading.Condition()
        self._step: int | None = None
        self._state: dict[str, Any] = {}
        self._unchanged: list[tuple[Tensor, int]] = []
        self._computed: Any = None
        self._reached_at = time.monotonic()
        self._step_seconds = 0.0
        self._handing_over = False
        self._is_updating = False

    # -- in the training thread ----------------------------------------------------------------------------------

    def begin_update(self) -> None:
        """The optimizer is about to change weights; waits for good once the state is being handed over."""
        if self._is_updating:
            return
        if self._trainer.strategy.root_device.type == "cuda":
            # The host runs ahead: what the update goes by may still be on its way from a peer that is gone.
            arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            while not arrived.query():
                time.sleep(_POLL_SECONDS)
        self._updating.acquire()
        self._is_updating = True

    def reach(self, following: Next) -> None:
        """A step, a validation or an epoch is over: keep its state."""
        trainer = self._trainer
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        weights = {weight.data_ptr() for weight in trainer.lightning_module.parameters()}
        optimizer_states = state.pop("optimizer_states")
        unchanged: list[Tensor] = []

        def stays(tensor: Tensor) -> bool:
            # A callback may validate with other weights in the place of these.
            if following is Next.VALIDATION:
                return False
            return tensor.data_ptr() in weights or not _is_small(tensor)

        kept = _kept(state, stays, unchanged)
        kept["optimizer_states"] = _kept(optimizer_states, lambda _: True, unchanged)
        if trainer.strategy.root_device.type == "cuda":
            self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._computed.record()
        with self._reached:
            self._state = kept
            self._unchanged = [(tensor, tensor._version) for tensor in unchanged]
            if trainer.global_step != self._step:
                now = time.monotonic()
                self._step_seconds, self._reached_at = now - self._reached_at, now
            self._step = trainer.global_step
            self._reached.notify_all()
        if self._is_updating:
            self._is_updating = False
            self._updating.release()
        if self._handing_over:
            threading.Event().wait()

    def give_up(self) -> None:
        """An exception ended the training thread: a half-done update can never be handed over."""
        if self._is_updating:
            with self._reached:
                self._step = None
                self._reached.notify_all()
            self._is_updating = False
            self._updating.release()

    # -- in the rescue thread ------------------------------------------------------------------------------------

    def hold(self, step: int, seconds: float) -> int | None:
        """Keep the training thread from updating anything, once it has finished ``step``.

        Args:
            step: a number of finished steps that is worth waiting for, as long as it takes no longer than usual; 0 is
                none.
            seconds: how long to wait for an update to end.

        Returns:
            The number of steps in the state; None if there is none to hand over.
        """
        with self._reached:
            usual = min(seconds, max(_STUCK_SECONDS, _STUCK_STEPS * self._step_seconds))
            self._reached.wait_for(lambda: self._step is None or self._step >= step, usual)
            self._handing_over = True
        if self._step is None or not self._updating.acquire(timeout=seconds):
            return None
        return self._step if all(tensor._version == version for tensor, version in self._unchanged) else None

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """While it lasts, tensors on a GPU can be read, whatever else waits there for a peer that is gone."""
        if self._computed is None:
            yield
            return
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_event(self._computed)
        with torch.cuda.stream(stream):
            yield

    def state(self) -> dict[str, Any]:
        """The state, in Lightning's format, after ``hold``."""
        return self._state


def _kept(value: Any, stays: Callable[[Tensor], bool], unchanged: list[Tensor]) -> Any:
    """The same containers, with copies of the tensors but for those that stay, which are added to ``unchanged``."""
    if isinstance(value, Tensor):
        if not stays(value):
            return value.detach().clone() if value.device.type == "cpu" or _is_small(value) else value.detach().cpu()
        unchanged.append(value)
        return value
    if type(value) in (dict, OrderedDict):
        kept = type(value)((key, _kept(each, stays, unchanged)) for key, each in value.items())
        if hasattr(value, "_metadata"):  # the versions of modules, in a state_dict
            kept._metadata = value._metadata
        return kept
    if type(value) in (list, tuple):
        return type(value)(_kept(each, stays, unchanged) for each in value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    return copy.deepcopy(value)


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= _COPIED_BYTES
