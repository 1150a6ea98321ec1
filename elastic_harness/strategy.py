"""The seam with Lightning: a DDP strategy whose workers are started, watched and restarted by an elastic agent.

Trainer.fit() in the user's process
    ElasticStrategy
        ElasticLauncher         starts the agent here, brings the result back
            ElasticAgent        supervises the local workers, generation after generation
                worker 0 .. n-1 each runs Trainer.fit's inner part with ElasticStrategy as its DDP strategy
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.overrides.distributed import _sync_module_states
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.trainer.states import RunningStage, TrainerFn
from torch import Tensor
from torch.distributed import PrefixStore, Store
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from elastic_harness import plain_resume, zygote
from elastic_harness.checkpoint.boundary import Boundary
from elastic_harness.checkpoint.callback import CHECKPOINT_KEY
from elastic_harness.config import (
    CheckpointConfig,
    ElasticConfig,
    ObjectiveConfig,
    PreemptionConfig,
    RendezvousConfig,
    RestartConfig,
    RunConfig,
    WatchdogConfig,
)
from elastic_harness.config.restart_rules import unknown_errors
from elastic_harness.config.rules import broken_rules, unnamed_run
from elastic_harness.curves import Curves
from elastic_harness.environment import ElasticEnvironment
from elastic_harness.errors import ConfigError
from elastic_harness.exact import accumulators, evaluation
from elastic_harness.exact.evaluation import EvaluationLoader, ExactEvaluationLoop
from elastic_harness.exact.training import ExactTraining, set_deterministic
from elastic_harness.launcher import ElasticLauncher
from elastic_harness.messages import Assignment
from elastic_harness.stop_signals import Shielded


class ElasticStrategy(DDPStrategy):
    """Distributed data-parallel training that survives its workers.

    Works from a Hydra run and from a plain script, ``pl.Trainer(devices=2, strategy=ElasticStrategy())`` or
    ``strategy="elastic"``. The process that calls ``fit()`` becomes the node's agent; the workers are forked from
    a process that has everything imported. When one dies, all are stopped and a new generation goes on from the
    last finished step, or the newest checkpoint in ``run_dir``, as far as ``restart`` allows.

    Args:
        elastic: number of nodes, threads; the number of workers a node comes from ``Trainer(devices=...)``.
        rendezvous: how nodes find each other.
        restart: which failures are retried, how often.
        checkpoint: when checkpoints are written and which are kept.
        objective: the metric that ``checkpoint.keep_best`` goes by.
        preemption: how fast a node stops that will go away, and who tells beside the signals.
        watchdog: how long workers may stand still.
        run_dir: the run's folder; null is ``<default_root_dir>/elastic``. A folder that holds a run resumes it.
        resume: ``auto`` (go on with the run in ``run_dir``), ``force`` (also if what defines its result has changed),
            ``never`` (set it aside and start over), or the path of a checkpoint to start from when ``run_dir`` holds
            no run.
        run_id: name by which the nodes of a run find each other; needed with ``elastic.max_nodes`` above 1.
        ddp_options: passed on to ``pytorch_lightning.strategies.DDPStrategy``, such as ``find_unused_parameters``.

    Attributes:
        config_yaml: what to record as the run's ``config.yaml``; None records nothing.
        boundary: in a worker, the state of the last finished step; None without ``checkpoint.rescue``.
        curves: in a worker, keeps TensorBoard's curves whole; None for plain DDP, where workers log different values.

    Raises:
        ConfigError: a value breaks a rule; all such mistakes at once.
    """

    def __init__(
        self,
        elastic: ElasticConfig | None = None,
        rendezvous: RendezvousConfig | None = None,
        restart: RestartConfig | None = None,
        checkpoint: CheckpointConfig | None = None,
        objective: ObjectiveConfig | None = None,
        preemption: PreemptionConfig | None = None,
        watchdog: WatchdogConfig | None = None,
        run_dir: str | None = None,
        resume: str = "auto",
        run_id: str | None = None,
        **ddp_options: Any,
    ) -> None:
        super().__init__(cluster_environment=ElasticEnvironment(), **ddp_options)
        self.elastic = elastic or ElasticConfig()
        self.rendezvous = rendezvous or RendezvousConfig()
        self.restart = restart or RestartConfig()
        self.checkpoint = checkpoint or CheckpointConfig()
        self.objective = objective or ObjectiveConfig()
        self.preemption = preemption or PreemptionConfig()
        self.watchdog = watchdog or WatchdogConfig()
        self.run_dir = run_dir
        self.resume = resume
        self.run_id = run_id
        self.config_yaml: str | None = None
        self._check()
        self._resumed_loops: dict[str, Any] | None = None
        self._resumed: dict[str, Any] = {}
        self._is_restored = False
        self._exact: ExactTraining | None = None
        self.boundary: Boundary | None = None
        self.curves: Curves | None = None
        self._limits: dict[str, float | None] = {}

    def _check(self) -> None:
        """The rules that a Hydra run keeps hold in a script, too."""
        run = RunConfig(
            run_id="script",
            run_dir=self.run_dir or "",
            experiment=None,
            resume=self.resume,
            objective=self.objective,
            elastic=self.elastic,
            rendezvous=self.rendezvous,
            restart=self.restart,
            checkpoint=self.checkpoint,
            preemption=self.preemption,
            watchdog=self.watchdog,
        )
        problems = [*broken_rules(run, set()), *unknown_errors(self.restart)]
        if self.elastic.max_nodes > 1 and not self.run_id:
            problems.append(unnamed_run(self.elastic.max_nodes))
        if problems:
            raise ConfigError(problems)

    def _configure_launcher(self) -> None:
        self._launcher = ElasticLauncher(self)
        if not zygote.importing_script():
            zygote.start()  # it imports while the Trainer and the model are being made

    def join(self, assignment: Assignment, store: Store) -> None:
        """Take this worker's place in its generation and form the process group.

        Lightning's own set-up finds the group initialised and leaves it alone.

        Args:
            assignment: ranks and sizes.
            store: the generation's store.
        """
        environment = self.cluster_environment
        assert isinstance(environment, ElasticEnvironment)
        assert self.parallel_devices is not None
        environment.assignment = assignment
        self.num_nodes = assignment.num_nodes
        self.set_world_ranks()
        device = self.root_device
        torch.distributed.init_process_group(
            self._get_process_group_backend(),
            store=PrefixStore("process_group", store),
            rank=assignment.rank,
            world_size=assignment.world_size,
            timeout=self._collective_timeout(),
            device_id=device if device.type == "cuda" else None,
        )

    def _collective_timeout(self) -> timedelta | None:
        """Longer than the watchdog takes, which knows better who holds up the others."""
        if not self.watchdog.enabled:
            return self._timeout
        limit = self.watchdog.hang_timeout
        return max(
            timedelta(days=1) if limit is None else timedelta(seconds=2 * limit),
            timedelta(seconds=2 * self.watchdog.startup_timeout),
        )

    def prepare(self, trainer: pl.Trainer) -> None:
        """Set up a worker's Trainer for the consistency that was asked for; comes after ``join``."""
        if self.elastic.consistency == "none":
            return
        bitwise = self.elastic.consistency == "bitwise"
        size = self.elastic.logical_world_size or self.world_size
        self._exact = ExactTraining(self, size, bitwise=bitwise)
        if bitwise and self.root_device.type == "cuda":
            set_deterministic()
        if trainer.state.fn != TrainerFn.PREDICTING:
            trainer._accelerator_connector.use_distributed_sampler = False
            evaluation.install(trainer)

    @property
    def is_exact(self) -> bool:
        """Whether this worker trains logical ranks, whatever the number of workers; False for plain DDP."""
        return self._exact is not None

    def take_step_seconds(self) -> list[float]:
        """Mean seconds of a worker's own part of a step since this was asked last, by rank; empty if not measured."""
        return self._exact.pace.take() if self._exact is not None else []

    def configure_ddp(self) -> None:
        if self._exact is None:
            super().configure_ddp()
        else:
            assert self.model is not None
            if not self._is_restored:  # from one state for all
                _sync_module_states(self.model)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._resumed_loops = checkpoint.get("loops", {}).get("fit_loop")
        self._resumed = checkpoint.get(CHECKPOINT_KEY, {})
        assert self.lightning_module is not None
        self._is_restored = self.lightning_module.state_dict().keys() <= checkpoint["state_dict"].keys()
        size = self._resumed.get("logical_world_size")
        if self._exact is not None and size not in (None, self._exact.logical_world_size):
            raise ConfigError(
                f"elastic.logical_world_size={self._exact.logical_world_size} must be the {size} of {checkpoint_path}, "
                f"or its steps would mean other samples: use elastic.logical_world_size={size}."
            )
        return checkpoint

    def harness_state(self) -> dict[str, Any]:
        """What a checkpoint holds beyond Lightning's own state."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        state: dict[str, Any] = {"should_stop": trainer.should_stop}
        if self._exact is not None:
            state["logical_world_size"] = self._exact.logical_world_size
            state["epoch"] = self._exact.epoch_state()
            state["accumulators"] = accumulators.state_of(trainer)
        if self.curves is not None:
            state["curves"] = self.curves.state_dict()
        return state

    def process_dataloader(self, dataloader: object) -> object:
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        stage = trainer.state.stage
        assert stage is not None
        if self._exact is None:
            if isinstance(dataloader, DataLoader):
                dataloader.worker_init_fn = Shielded(dataloader.worker_init_fn)
            if self._resumed_loops is None or stage != RunningStage.TRAINING:
                return dataloader
            return plain_resume.start_at(self._resumed_loops, dataloader)
        if stage == RunningStage.TRAINING:
            return self._exact.train_loader(dataloader)
        if stage == RunningStage.PREDICTING:
            return dataloader
        kind = str(stage.dataloader_prefix)
        if kind not in self._limits:
            self._limits[kind] = evaluation.limit_of(trainer, kind)
        limit = self._limits[kind]
        return EvaluationLoader(
            dataloader,
            f"{kind}_dataloader",
            self._exact.seed,
            self.global_rank,
            self.world_size,
            self._exact.logical_world_size,
            limit,
        )

    def on_train_start(self) -> None:
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        trainer.should_stop |= self._resumed.get("should_stop", False)
        if self._exact is not None:
            self._exact.check_loaders()
            self._exact.keep_reload_epochs()
            self._exact.check_resumed(self._resumed.get("epoch", {}))
            if "accumulators" in self._resumed:
                accumulators.restore(trainer, self._resumed["accumulators"])
        if self.curves is not None:
            self.curves.begin(self._resumed.get("curves", {}))
        self._resumed_loops, self._resumed = None, {}

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        batch = super().batch_to_device(batch, device, dataloader_idx)
        assert self.lightning_module is not None
        if self._exact is not None and self.lightning_module.trainer.training:
            self._exact.before_batch_start(batch)
        return batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._exact is not None:
            self._exact.after_batch_start(batch)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._exact is None:
            return super().training_step(*args, **kwargs)
        return self._exact.training_step(*args)

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        if self._exact is None:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        return self._exact.backward(closure_loss, optimizer, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        def then_update() -> Any:
            output = closure()
            if self.boundary is not None:
                self.boundary.begin_update()
            return output

        return super().optimizer_step(optimizer, then_update, model, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(super().validation_step, args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluate(super().test_step, args, kwargs)

    def _evaluate(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.lightning_module is not None
        loop = self.lightning_module.trainer._active_loop
        if self._exact is None:
            return step(*args, **kwargs)
        if isinstance(loop, _FitLoop):
            loop = loop.epoch_loop.val_loop
        assert isinstance(loop, ExactEvaluationLoop)
        return loop.step(step, args, self._exact.seed)


StrategyRegistry.register("elastic", ElasticStrategy, description="DDP whose workers an elastic agent restarts")
