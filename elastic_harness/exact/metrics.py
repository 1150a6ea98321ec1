"""torchmetrics objects: one state for each logical rank, whoever hosts it, as under DDP with that many workers.

Between steps an object holds none of them: what it then computes comes of all states, put together in the order of
their places, so it is the same bits at any number of workers, floating-point sums included. Every worker is told of
what the others have updated, in each step and after an evaluation, so that none is lost with a worker. What a worker
updates outside of the steps is a state of its own, as under DDP.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric

from elastic_harness.errors import ConfigError

Place = tuple[str, int]
"""What a state belongs to: ``("train", logical rank)``, in evaluation ``("evaluate", batch % logical ranks)``, and
outside of steps ``("outside", rank of the worker)``."""

State = dict[str, Any]
"""The states of a torchmetrics object by their names, and how often it was updated."""

Changes = dict[str, dict[Place, State | None]]
"""Of several objects by name: what changed at each place, as ``LogicalMetric.take_changes`` gives it."""

_OUTSIDE = "outside"
_COUNT = "_update_count"


class LogicalMetric:
    """Keeps the states of one torchmetrics object apart.

    Args:
        metric: the object. Its ``sync``, ``reset`` and ``forward`` are taken over.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._states: dict[Place, State] = {}
        self._place: Place | None = None
        self._in_forward = False
        self._count = 0  # of updates outside of steps that are in the states already
        self._changed: set[Place] = set()
        self._told: dict[Place, dict[str, int]] = {}  # how much of each list the other workers have
        vars(metric).update(_logical=self, sync=self._sync, reset=self._reset, forward=self._forward)

    def enter(self, place: Place) -> None:
        """What is updated from now on belongs to a place."""
        self._take_outside()
        self._place = place
        self._load(self._states.get(place))

    def leave(self, *, keep: bool) -> None:
        """The step of a place is over.

        Args:
            keep: False forgets what was updated in it.
        """
        assert self._place is not None
        if keep:
            self._changed.add(self._place)
            self._states[self._place] = self._state()
            if not self._metric._update_count:
                del self._states[self._place]
        self._place = None
        self._load(self._states.get(_outside()))
        self._count = self._metric._update_count

    def states(self) -> dict[Place, State]:
        """The states that this worker knows of; they go on changing."""
        self._take_outside()
        return dict(self._states)

    def take_changes(self) -> dict[Place, State | None]:
        """What was updated since the last call: states with only the new part of lists; None for one that is empty."""
        self._take_outside()
        changes = {place: self._change(place) for place in self._changed}
        self._changed.clear()
        return changes

    def put_changes(self, changes: Mapping[Place, State | None]) -> None:
        """Take in the changes of another worker."""
        self._metric._computed = None
        for place, change in changes.items():
            before = self._states.pop(place, {})
            if change is not None:
                change = _copy(change, self._metric.device)
                for name, default in self._metric._defaults.items():
                    if isinstance(default, list):
                        kept, new = change[name]
                        change[name] = [*before.get(name, [])[:kept], *new]
                self._states[place] = change

    def _change(self, place: Place) -> State | None:
        state, told = self._states.get(place), self._told.pop(place, {})
        if state is None:
            return None
        lists = [name for name in state if isinstance(state[name], list)]
        self._told[place] = {name: len(state[name]) for name in lists}
        parts = {name: [told.get(name, 0), state[name][told.get(name, 0) :]] for name in lists}
        change: State = _copy({**state, **parts}, "cpu")
        return change

    def restore(self, states: Mapping[Place, State]) -> None:
        """Put back states."""
        self._states = {place: _copy(state, self._metric.device) for place, state in states.items()}
        self._changed.clear()
        self._told.clear()
        self._load(self._states.get(_outside()))
        self._count = self._metric._update_count

    def _take_outside(self) -> None:
        if self._place is None and self._metric._update_count > self._count:
            self._states[_outside()] = self._state()
            self._changed.add(_outside())
            self._count = self._metric._update_count

    def _state(self) -> State:
        return {name: getattr(self._metric, name) for name in (*self._metric._defaults, _COUNT)}

    def _load(self, state: State | None) -> None:
        if state is None:
            state = _copy(self._metric._defaults, self._metric.device) | {_COUNT: 0}
        vars(self._metric).update(state, _computed=None)

    def _sync(
        self, dist_sync_fn: object = None, process_group: object = None, should_sync: bool = True, **_: object
    ) -> None:
        """Stands in for ``Metric.sync``: put all states together, until ``unsync``."""
        metric = self._metric
        if self._place is not None and should_sync:
            raise ConfigError(
                f"{type(metric).__name__} is computed over all workers inside a step, and a worker may run it several "
                "times, for the logical ranks it hosts: compute it in an epoch hook, without dist_sync_on_step, or use "
                "elastic.consistency=none."
            )
        if self._place is not None or self._in_forward:
            return
        states = self.states()
        if should_sync:
            states |= _gathered({place: state for place, state in states.items() if place[0] == _OUTSIDE})
        metric._cache = {name: getattr(metric, name) for name in metric._defaults}
        metric._is_synced = True
        if states:
            for name in metric._defaults:
                parts = [_copy(states[place], metric.device)[name] for place in sorted(states)]
                setattr(metric, name, _together(parts, metric._reductions[name]))

    def _reset(self) -> None:
        """Stands in for ``Metric.reset``: inside a step it is the state of a logical rank that begins anew."""
        if self._place is None and not self._in_forward:
            self._states.clear()
            self._changed.clear()
            self._told.clear()
            self._count = 0
        elif self._place is not None and not self._in_forward:
            self._told.pop(self._place, None)
        type(self._metric).reset(self._metric)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for ``Metric.forward``, which resets and computes for the batch alone."""
        before, self._in_forward = self._in_forward, True
        try:
            return type(self._metric).forward(self._metric, *args, **kwargs)
        finally:
            self._in_forward = before


def logical_metrics(module: nn.Module) -> dict[str, LogicalMetric]:
    """The torchmetrics objects of a module that have states, by name; each is taken over when it is first seen."""
    found = {name: each for name, each in module.named_modules() if isinstance(each, Metric) and each._defaults}
    if any("_logical" not in vars(each) for each in found.values()):
        # Between steps an object looks as if it had not been updated.
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric .* was called before")
    return {name: vars(each).get("_logical") or LogicalMetric(each) for name, each in found.items()}


@contextlib.contextmanager
def updated_at(metrics: Collection[LogicalMetric], place: Place, *, keep: bool = True) -> Iterator[None]:
    """While it lasts, updates of torchmetrics objects belong to a place.

    Args:
        metrics: the objects.
        place: the place.
        keep: False forgets the updates.
    """
    for each in metrics:
        each.enter(place)
    yield
    for each in metrics:
        each.leave(keep=keep)


def take_changes(metrics: Mapping[str, LogicalMetric]) -> Changes:
    """What this worker has updated since the last call."""
    return {name: changes for name, each in metrics.items() if (changes := each.take_changes())}


def put_changes(metrics: Mapping[str, LogicalMetric], changes: Changes) -> None:
    """Take in what another worker has updated."""
    for name, each in changes.items():
        metrics[name].put_changes(each)


def _outside() -> Place:
    return _OUTSIDE, dist.get_rank() if dist.is_initialized() else 0


def _gathered(states: dict[Place, State]) -> dict[Place, State]:
    """The states of all workers; each of them has to call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return states
    everyones: list[dict[Place, State]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, states)
    return {place: state for each in everyones for place, state in each.items()}


def _together(parts: list[Any], reduction: Any) -> Any:
    """One state of several, as ``Metric.sync`` makes it."""
    if isinstance(parts[0], list):
        listed = [each for part in parts for each in part]
        return reduction(listed) if reduction is not None and listed else listed
    return torch.stack(parts) if reduction is None else reduction(torch.stack(parts))


def _copy(state: Any, device: Any) -> Any:
    """A state, or a part of it, on a device; updates add to the original in place."""
    if isinstance(state, dict):
        return {name: _copy(part, device) for name, part in state.items()}
    if isinstance(state, list):
        return [_copy(part, device) for part in state]
    return state.detach().to(device, copy=True) if isinstance(state, Tensor) else state
