"""Private names of Lightning, torch and Python that the harness builds on: a renamed one fails here, by name."""

from __future__ import annotations

import inspect
from multiprocessing import forkserver

import pytest
import pytorch_lightning as pl
from lightning_fabric.utilities import seed
from lightning_fabric.utilities.data import _set_sampler_epoch
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.launcher import _Launcher
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.connectors.checkpoint_connector import _CheckpointConnector
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (DDPStrategy, ["_configure_launcher", "_get_process_group_backend", "set_world_ranks", "process_dataloader"]),
        (_Launcher, ["launch", "kill", "is_interactive_compatible"]),
        (_TrainingEpochLoop, ["_broadcast_sigterm_tensor", "_should_check_val_fx"]),
        (_SignalConnector, ["register_signal_handlers"]),
        (_CheckpointConnector, ["dump_checkpoint"]),
        (call, ["_call_callbacks_state_dict", "_interrupt"]),
        (seed, ["_collect_rng_states", "_set_rng_states"]),
        (
            LocalElasticAgent,
            [
                "_invoke_run",
                "_initialize_workers",
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


def test_upstream_when_a_tensorboard_logger_is_made_then_purge_step_can_be_set() -> None:
    logger = pl.loggers.TensorBoardLogger("unused", purge_step=3)
    assert logger._kwargs == {"purge_step": 3}
