"""Train a model: ``python train.py +experiment=imagenet_elastic``; ``python train.py --help`` shows more.

Starting in the folder of a run resumes it: ``python train.py +experiment=imagenet_elastic run_id=night1``.
"""

from __future__ import annotations

from omegaconf import DictConfig

from elastic_harness import zygote
from elastic_harness.config.targets import target_modules
from elastic_harness.entry import already_finished, hydra_entry, parse_job


@hydra_entry
def train(cfg: DictConfig) -> float | None:
    run = parse_job(cfg)  # every mistake at once, before torch is imported
    finished = already_finished(run)
    if finished is not None:
        return finished.objective
    zygote.start_from_here(target_modules(run))  # torch and the model are imported once, for all processes

    from elastic_harness.entry.build import build, introduce, objective

    model, data, trainer = build(run)
    introduce(run, model, data, trainer)
    trainer.fit(model, datamodule=data)
    return objective(run, trainer)


if __name__ == "__main__":
    train()
