"""What a training epoch has logged so far, as part of a checkpoint: Lightning keeps none of it.

Without it the means of a resumed epoch are those of its tail, and what decides on them decides differently.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from torchmetrics import Metric

_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")
_VALUES = ("value", "cumulated_batch_size", "_forward_cache")


def state_of(trainer: pl.Trainer) -> dict[str, Any]:
    """The sums that ``self.log`` keeps, the states of torchmetrics objects, and the newest callback metrics.

    Every worker has to call it: the states of torchmetrics objects are added over all of them.
    """
    module = trainer.lightning_module
    results = [each for each in trainer.fit_loop.epoch_loop._results.values() if not each.has_reset]
    attributes = sorted({each.meta.metric_attribute for each in results if each.meta.metric_attribute})
    return {
        "results": [_result_state(each) for each in results],
        "metrics": {name: _metric_state(attrgetter(name)(module)) for name in attributes},
        "callback_metrics": dict(trainer._logger_connector._callback_metrics),
    }


def restore(trainer: pl.Trainer, state: dict[str, Any]) -> None:
    """Put back what ``state_of`` gave, on every worker."""
    module, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    for each in state["results"]:
        options = dict(each["options"])
        attribute = options["metric_attribute"]
        value = attrgetter(attribute)(module) if attribute else torch.zeros((), device=module.device)
        if each["fx"] != "training_step":
            options["sync_dist_fn"] = trainer.strategy.reduce
        results.log(each["fx"], each["name"], value, batch_size=1, **options)
        for name, number in each["values"].items():
            # A tensor is cloned: the sums are added to in place.
            setattr(results[f"{each['fx']}.{each['name']}"], name, number.clone().to(module.device))
    for name, metric_state in state["metrics"].items():
        _restore_metric(attrgetter(name)(module), metric_state)
    trainer._logger_connector._callback_metrics.update(state["callback_metrics"])
    if state["results"]:
        # The next batch is not the epoch's first, at which Lightning would begin the sums anew.
        trainer._logger_connector._first_loop_iter = False


def _result_state(result: _ResultMetric) -> dict[str, Any]:
    meta = result.meta
    options = {name: getattr(meta, name) for name in _OPTIONS}
    options |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": meta.sync.should}
    options |= {"rank_zero_only": meta.sync.rank_zero_only}
    found = {name: vars(result).get(name) for name in _VALUES} if result.is_tensor else {}
    values = {name: value.detach().cpu() for name, value in found.items() if value is not None}
    return {"fx": meta.fx, "name": meta.name, "options": options, "values": values}


def _metric_state(metric: Metric) -> dict[str, Any]:
    together = dist.is_initialized() and dist.get_world_size() > 1
    if together:
        metric.sync()
    state = {name: getattr(metric, name) for name in metric._defaults}
    if together:
        metric.unsync()
    return state


def _restore_metric(metric: Metric, state: dict[str, Any]) -> None:
    first = not dist.is_initialized() or dist.get_rank() == 0
    for name, default in metric._defaults.items():
        # One worker takes what all had together; the others begin with nothing, until all is added up again.
        value = state[name] if first else default
        if isinstance(default, list):
            value = list(value) if isinstance(value, (list, tuple)) else [value]
            setattr(metric, name, [each.to(metric.device) for each in value])
        else:
            setattr(metric, name, torch.as_tensor(value).detach().clone().to(metric.device))
    metric._update_count = max(metric._update_count, 1)
    metric._computed = None
