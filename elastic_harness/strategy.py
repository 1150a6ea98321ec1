"""The seam with Lightning: a DDP strategy whose workers are started, watched and restarted by an elastic agent.

Trainer.fit() in the user's process
    ElasticStrategy
        ElasticLauncher         starts the agent here, brings the result back
            ElasticAgent        supervises the local workers, generation after generation
                worker 0 .. n-1 each runs Trainer.fit's inner part with ElasticStrategy as its DDP strategy
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sized
from typing import Any

import torch
from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.utilities.data import _set_sampler_epoch
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.trainer.states import RunningStage
from torch.distributed import PrefixStore, Store
from torch.utils.data import BatchSampler, Sampler

from elastic_harness import zygote
from elastic_harness.config import (
    CheckpointConfig,
    ElasticConfig,
    ObjectiveConfig,
    RendezvousConfig,
    RestartConfig,
    RunConfig,
)
from elastic_harness.errors import ConfigError
from elastic_harness.launcher import ElasticLauncher
from elastic_harness.messages import Assignment
from elastic_harness.rules import broken_rules


class ElasticStrategy(DDPStrategy):
    """Distributed data-parallel training that survives its workers.

    Works from a Hydra run and from a plain script, ``pl.Trainer(devices=2, strategy=ElasticStrategy())`` or
    ``strategy="elastic"``. The process that calls ``fit()`` becomes the node's agent; the workers are forked from
    a process that has everything imported. When one dies, all are stopped and a new generation goes on from the
    newest checkpoint in ``run_dir``, as far as ``restart`` allows.

    Args:
        elastic: number of nodes, threads; the number of workers a node comes from ``Trainer(devices=...)``.
        rendezvous: how nodes find each other.
        restart: which failures are retried, how often.
        checkpoint: when checkpoints are written and which are kept.
        objective: the metric that ``checkpoint.keep_best`` goes by.
        run_dir: the run's folder; null is ``<default_root_dir>/elastic``. A folder that holds a run resumes it.
        resume: ``auto`` (go on with the run in ``run_dir``), ``never`` (set it aside and start over), or the path of
            a checkpoint to start from when ``run_dir`` holds no run.
        ddp_options: passed on to ``pytorch_lightning.strategies.DDPStrategy``, such as ``find_unused_parameters``.

    Attributes:
        config_yaml: what to record as the run's ``config.yaml``; None records nothing.

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
        run_dir: str | None = None,
        resume: str = "auto",
        **ddp_options: Any,
    ) -> None:
        super().__init__(cluster_environment=ElasticEnvironment(), **ddp_options)
        self.elastic = elastic or ElasticConfig()
        self.rendezvous = rendezvous or RendezvousConfig()
        self.restart = restart or RestartConfig()
        self.checkpoint = checkpoint or CheckpointConfig()
        self.objective = objective or ObjectiveConfig()
        self.run_dir = run_dir
        self.resume = resume
        self.config_yaml: str | None = None
        self._check()
        self._resumed_loops: dict[str, Any] | None = None

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
        )
        if problems := list(broken_rules(run, set())):
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
            timeout=self._timeout,
            device_id=device if device.type == "cuda" else None,
        )

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._resumed_loops = checkpoint.get("loops", {}).get("fit_loop")
        return checkpoint

    def process_dataloader(self, dataloader: object) -> object:
        """Start the first training loader after a resume at the batch that comes next, in the order of its epoch.

        Lightning starts over at the epoch's first batch. It may also ask for the loader, and draw from it, before it
        has restored its loops: a scheduler that wants to know the number of steps is enough. A loader without a
        torch ``BatchSampler`` (an iterable dataset, a batch sampler of its own) does start over.
        """
        assert self.lightning_module is not None
        if self._resumed_loops is None or self.lightning_module.trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        _set_sampler_epoch(dataloader, self._resumed_loops["epoch_progress"]["current"]["processed"])
        progress = self._resumed_loops["epoch_loop.batch_progress"]
        batches_done = 0 if progress["is_last_batch"] else progress["current"]["ready"]
        batch_sampler = getattr(dataloader, "batch_sampler", None)
        if batches_done and isinstance(batch_sampler, BatchSampler):
            batch_sampler.sampler = _SkipOnce(batch_sampler.sampler, batches_done * batch_sampler.batch_size)
            # True of an ordinary loader, no longer of this one.
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
        return dataloader

    def on_train_start(self) -> None:
        self._resumed_loops = None


class ElasticEnvironment(ClusterEnvironment):
    """Tells Lightning the ranks of this generation; in the agent's process there is one rank, 0 of 1."""

    def __init__(self) -> None:
        self.assignment: Assignment | None = None

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self.assignment.store_host if self.assignment else "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self.assignment.store_port if self.assignment else 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.assignment.world_size if self.assignment else 1

    def set_world_size(self, size: int) -> None:
        """The size comes from the assignment."""

    def global_rank(self) -> int:
        return self.assignment.rank if self.assignment else 0

    def set_global_rank(self, rank: int) -> None:
        """The rank comes from the assignment."""

    def local_rank(self) -> int:
        return self.assignment.local_rank if self.assignment else 0

    def node_rank(self) -> int:
        return self.assignment.node_rank if self.assignment else 0


class _SkipOnce(Sampler[Any]):
    """A sampler that leaves out the first samples of its first iteration: those trained on before the resume."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler = sampler
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        return itertools.islice(iter(self._sampler), skip, None)

    def __len__(self) -> int:
        assert isinstance(self._sampler, Sized)
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on, if the sampler takes one."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)


StrategyRegistry.register("elastic", ElasticStrategy, description="DDP whose workers an elastic agent restarts")
