from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from elastic_harness.exact.training import ExactTraining, set_deterministic


def training(rank: int, world: int, module: Any = None) -> ExactTraining:
    strategy: Any = SimpleNamespace(
        global_rank=rank, world_size=world, lightning_module=module, root_device=torch.device("cpu")
    )
    return ExactTraining(strategy, 6, bitwise=True)


@pytest.mark.parametrize(("epoch", "begun"), [(3, 3), (4, 3), (5, 3), (6, 6)])
def test_keep_reload_epochs_when_a_start_begins_in_a_later_epoch_then_they_are_counted_from_the_first(
    epoch: int, begun: int
) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        reload_dataloaders_every_n_epochs=3,
    )
    trainer.fit_loop.epoch_progress.current.completed = epoch
    trainer.fit_loop._last_train_dl_reload_epoch = epoch
    training(0, 1, SimpleNamespace(trainer=trainer)).keep_reload_epochs()
    assert trainer.fit_loop._last_train_dl_reload_epoch == begun
    assert trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch == begun


@pytest.mark.parametrize("warn_only", [True, False])
def test_set_deterministic_when_the_user_wants_warnings_only_then_it_stays_so(
    warn_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.use_deterministic_algorithms(warn_only, warn_only=warn_only)
    try:
        set_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)
