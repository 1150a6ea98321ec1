"""The peer: what ``+experiment=imagenet_elastic`` trains, as a plain Lightning script that torchrun restarts.

    torchrun --standalone --nproc-per-node 2 --max-restarts 5 -m peers.plain_lightning FOLDER TRACE DATA_ROOT

It resumes from its last checkpoint. ``save_last="link"`` writes each checkpoint once, as the other side does.
A test compares the values below with those in ``conf/``.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from torch.optim import SGD

from imagenet.module import ImageClassifier
from imagenet.sample import ImageNetSampleDataModule
from imagenet.schedule import warmup_cosine
from peers.sides import CHECKPOINT_STEPS, EPOCHS, SEED
from peers.step_trace import StepTrace

OPTIMIZER: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1.0e-4, "nesterov": False}
SCHEDULER: dict[str, Any] = {"warmup_fraction": 0.05, "final_lr_fraction": 0.0}
MODEL: dict[str, Any] = {"name": "resnet18", "num_classes": 10, "label_smoothing": 0.0, "channels_last": True}
DATA: dict[str, Any] = {
    "num_classes": 10,
    "batch_size": 32,
    "num_workers": 0,
    "image_size": 32,
    "resize_size": 32,
    "scale": [0.7, 1.0],
    "flip": False,
    "mean": [0.3053, 0.3053, 0.3053],
    "std": [0.3762, 0.3762, 0.3762],
    "on_bad_image": "fail",
    "max_bad_images": 100,
    "pin_memory": True,
    "persistent_workers": False,
}
TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "precision": "32-true",
    "log_every_n_steps": 10,
    "deterministic": False,
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
}


def main(folder: str, trace: str, data_root: str) -> None:
    """Train, from the last checkpoint in the folder if it has one."""
    pl.seed_everything(SEED, workers=True, verbose=False)
    model = ImageClassifier(optimizer=partial(SGD, **OPTIMIZER), scheduler=partial(warmup_cosine, **SCHEDULER), **MODEL)
    checkpoint = ModelCheckpoint(f"{folder}/checkpoints", every_n_train_steps=CHECKPOINT_STEPS, save_last="link")
    trainer = pl.Trainer(
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=EPOCHS,
        limit_val_batches=0,
        logger=TensorBoardLogger(folder, "tensorboard", ""),
        callbacks=[StepTrace(trace), checkpoint],
        enable_progress_bar=False,
        **TRAINER,
    )
    trainer.fit(model, datamodule=ImageNetSampleDataModule(data_root, **DATA), ckpt_path="last")


if __name__ == "__main__":
    main(*sys.argv[1:])
