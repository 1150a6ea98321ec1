"""What a training epoch has logged so far, as part of a checkpoint: Lightning keeps none of it.

Without it the means of a resumed epoch are those of its tail, and what decides on them decides differently.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric

from elastic_harness.exact.metrics import logical_metrics

_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")
_VALUES = ("value", "cumulated_batch_size", "_forward_cache")


def state_of(trainer: pl.Trainer) -> dict[str, Any]:
    """The sums that ``self.log`` keeps, the states of torchmetrics objects, and the newest callback metrics.

    Those of torchmetrics objects are those of all workers, as far as these have told each other.
    """
    metrics = logical_metrics(trainer.lightning_module)
    results = [each for each in trainer.fit_loop.epoch_loop._results.values() if not each.has_reset]
    return {
        "results": [_result_state(each) for each in results],
        "metrics": {name: metric.states() for name, metric in metrics.items()},
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
    metrics = logical_metrics(module)
    for name in metrics.keys() & state["metrics"].keys():
        metrics[name].restore(state["metrics"][name])
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
    values = {name: value.detach() for name, value in found.items() if value is not None}
    return {"fx": meta.fx, "name": meta.name, "options": options, "values": values}
