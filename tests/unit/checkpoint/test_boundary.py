"""What a worker keeps of its last finished step, and when it may not hand it over."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_harness.checkpoint.boundary import Boundary
from elastic_harness.loops import Next


class Probe(pl.LightningModule):
    """Asks for its state in the middle of things: what comes first in a step is ``during``."""

    def __init__(self, during: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(600, 600)  # more than what is copied
        self.register_buffer("seen", torch.zeros(()))
        self.during = during
        self.boundary: Any = None
        self.held: list[int | None] = []
        self.states: list[Any] = []

    def ask(self, during: str) -> None:
        if during == self.during and self.global_step == 2:
            asker = threading.Thread(target=lambda: self.held.append(self.boundary.hold(0, 0.2)))
            asker.start()
            asker.join()
            self.states.append(self.boundary.state())
            raise KeyboardInterrupt

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += 1
        if self.during == "swapped" and self.global_step == 2:
            with torch.no_grad():
                self.layer.weight.mul_(2)
            self.ask("swapped")
        self.ask("forward")
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        def then_update() -> Any:
            loss = optimizer_closure()
            self.ask("backward done")
            self.boundary.begin_update()
            self.ask("update")
            return loss

        optimizer.step(then_update)


def interrupted(folder: Path, during: str) -> Probe:
    module = Probe(during)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    module.boundary = Boundary(trainer)

    class Reach(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            module.boundary.reach(Next.BATCH)
            module.weights = module.layer.weight.detach().clone()

    trainer.callbacks.append(Reach())  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        trainer.fit(module, DataLoader(TensorDataset(torch.randn(4, 600)), 1))
    return module


@pytest.mark.parametrize("during", ["forward", "backward done"])
def test_boundary_when_asked_before_the_update_then_hands_over_the_last_step(tmp_path: Path, during: str) -> None:
    probe = interrupted(tmp_path, during)
    assert probe.held == [2]
    (state,) = probe.states
    assert state["global_step"] == 2
    assert torch.equal(state["state_dict"]["layer.weight"], probe.weights)
    assert state["state_dict"]["seen"] == 2, "the step under way has counted a third"
    assert len(state["optimizer_states"][0]["state"]) == 2


@pytest.mark.parametrize("during", ["update", "swapped"])
def test_boundary_when_weights_are_changing_or_were_changed_then_hands_nothing_over(
    tmp_path: Path, during: str
) -> None:
    assert interrupted(tmp_path, during).held == [None]
