"""Private names of Lightning, torch and Python that the harness builds on: a renamed one fails here, by name."""

from __future__ import annotations

import inspect
from multiprocessing import forkserver

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import seed
from lightning_fabric.utilities.data import _set_sampler_epoch
from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.overrides.distributed import _sync_module_states
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.launcher import _Launcher
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.connectors.checkpoint_connector import _CheckpointConnector
from pytorch_lightning.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from pytorch_lightning.trainer.connectors.logger_connector.result import _Metadata, _ResultCollection, _Sync
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torchmetrics import Metric, SumMetric


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (DDPStrategy, ["_configure_launcher", "_get_process_group_backend", "set_world_ranks", "process_dataloader"]),
        (_Launcher, ["launch", "kill", "is_interactive_compatible"]),
        (DDPStrategy, ["configure_ddp", "training_step", "validation_step", "test_step", "backward"]),
        (_TrainingEpochLoop, ["_broadcast_sigterm_tensor", "_should_check_val_fx", "_num_ready_batches_reached"]),
        (_TrainingEpochLoop, ["advance", "on_advance_end", "on_run_start", "done", "_should_accumulate"]),
        (_TrainingEpochLoop, ["on_save_checkpoint", "on_load_checkpoint"]),
        (_FitLoop, ["advance", "on_advance_end", "on_run_end", "done"]),
        (DDPStrategy, ["optimizer_step", "batch_to_device", "load_checkpoint"]),
        (_EvaluationLoop, ["_store_dataloader_outputs", "on_run_start", "on_run_end", "num_dataloaders"]),
        (
            _EvaluationLoop,
            ["setup_data", "_evaluation_step", "_is_sequential", "on_save_checkpoint", "on_load_checkpoint"],
        ),
        (_ResultCollection, ["log", "reset", "result_metrics"]),
        (_LoggerConnector, ["should_reset_tensors", "epoch_end_reached"]),
        (Metric, ["sync", "unsync", "reset", "forward"]),
        (torch.distributed.ProcessGroup, ["allreduce", "_allgather_base", "broadcast", "barrier", "send"]),
        (pl.LightningModule, ["_on_before_batch_transfer"]),
        (_SignalConnector, ["register_signal_handlers"]),
        (_CheckpointConnector, ["dump_checkpoint"]),
        (call, ["_call_callbacks_state_dict", "_interrupt"]),
        (torch._C, ["_error_if_any_worker_fails"]),
        (seed, ["_collect_rng_states", "_set_rng_states"]),
        (
            LocalElasticAgent,
            [
                "_invoke_run",
                "_initialize_workers",
                "_assign_worker_ranks",
                "_start_workers",
                "_stop_workers",
                "_monitor_workers",
                "_shutdown",
                "_construct_event",
            ],
        ),
        (forkserver, ["ensure_running", "_forkserver"]),
        (forkserver._forkserver, ["_forkserver_pid", "set_forkserver_preload"]),  # type: ignore[attr-defined]
    ],
)
def test_upstream_when_asked_then_has_the_names_the_harness_uses(owner: object, names: list[str]) -> None:
    assert [name for name in names if not hasattr(owner, name)] == []


def test_upstream_when_fit_is_called_then_hands_ckpt_path_and_weights_only_to_the_launcher() -> None:
    parameters = inspect.signature(pl.Trainer._fit_impl).parameters
    assert {"ckpt_path", "weights_only"} <= parameters.keys()
    assert callable(_set_sampler_epoch)


def test_upstream_when_a_trainer_is_made_then_has_the_attributes_the_harness_sets() -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    assert isinstance(trainer.callbacks, list)  # type: ignore[attr-defined]
    assert callable(trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor)
    assert callable(trainer._signal_connector.register_signal_handlers)
    state = trainer.fit_loop.state_dict()
    assert "processed" in state["epoch_progress"]["current"]
    assert "ready" in state["epoch_loop.batch_progress"]["current"]
    assert "is_last_batch" in state["epoch_loop.batch_progress"]
    assert {"_first_loop_iter", "_callback_metrics"} <= vars(trainer._logger_connector).keys()
    assert trainer._accelerator_connector.use_distributed_sampler
    loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    assert all({"_results", "_combined_loader"} <= vars(loop).keys() for loop in loops)
    assert "_results" in vars(trainer.fit_loop.epoch_loop)
    assert {"_restarting", "_last_train_dl_reload_epoch"} <= vars(trainer.fit_loop).keys()
    assert "_last_val_dl_reload_epoch" in vars(trainer.fit_loop.epoch_loop.val_loop)
    assert {"_layer_sync", "_ddp_comm_hook"} <= vars(DDPStrategy()).keys()


def test_upstream_when_a_value_is_logged_then_its_sums_are_where_the_harness_finds_them() -> None:
    results = _ResultCollection(training=True)
    results.log("training_step", "loss", torch.tensor(2.0), on_step=True, batch_size=3)
    (result,) = results.result_metrics
    assert {"value", "cumulated_batch_size", "_forward_cache", "has_reset"} <= vars(result).keys()
    assert (float(result.value), int(result.cumulated_batch_size)) == (6.0, 3)
    assert "sync_dist_fn" in inspect.signature(_ResultCollection.log).parameters
    assert _Sync.no_op(1) == 1
    assert _Metadata("f", "n", reduce_fx="sum").reduce_fx is torch.sum  # type: ignore[arg-type]
    assert callable(_sync_module_states)


def test_upstream_when_a_metric_is_made_then_its_state_is_where_the_harness_finds_it() -> None:
    names = {"_defaults", "_reductions", "_update_count", "_computed", "_forward_cache", "_cache", "_is_synced"}
    assert names <= vars(SumMetric()).keys()


def test_upstream_when_a_batch_is_fetched_then_the_dataset_gets_what_the_batch_sampler_yields() -> None:
    class Asked(torch.utils.data.Dataset[str]):
        def __getitems__(self, request: str) -> str:
            return request

    loader = torch.utils.data.DataLoader(Asked(), batch_sampler=["one", "two"], collate_fn=str.upper)  # type: ignore[arg-type]
    assert list(loader) == ["ONE", "TWO"]


def test_upstream_when_a_tensorboard_logger_is_made_then_purge_step_can_be_set() -> None:
    logger = pl.loggers.TensorBoardLogger("unused", purge_step=3)
    assert logger._kwargs == {"purge_step": 3}
