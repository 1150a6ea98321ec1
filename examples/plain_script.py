"""ElasticStrategy in a script of your own, without Hydra: ``python examples/plain_script.py``.

Two workers; kill one and watch the run go on. Starting the script again in the same folder resumes the run.
"""

import pytorch_lightning as pl
import torch

from elastic_harness import CheckpointConfig, ElasticStrategy, RestartConfig
from recipes.digits_mlp.module import DigitsData, DigitsMLP


def main() -> None:
    pl.seed_everything(42, workers=True)
    strategy = ElasticStrategy(
        restart=RestartConfig(max_restarts=3),
        checkpoint=CheckpointConfig(every_n_steps=20),
    )
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=12, strategy=strategy, logger=False, default_root_dir="runs/plain"
    )
    trainer.fit(DigitsMLP(optimizer=torch.optim.Adam), datamodule=DigitsData())
    print({name: float(value) for name, value in trainer.callback_metrics.items()})  # noqa: T201


if __name__ == "__main__":
    main()
