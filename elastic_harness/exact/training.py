"""Exact training: one optimizer step of all logical ranks, on however many workers there are.

For Lightning a step has one batch, that of the lowest logical rank hosted here. ``training_step`` computes the others
before it, with their transfer hooks, and sets their gradients aside; ``backward`` adds the last ones and everyone's.
There is no DDP wrapper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from elastic_harness.errors import ConfigError
from elastic_harness.exact import bucket, collectives
from elastic_harness.exact.loader import ElasticLoader, Part, Step
from elastic_harness.exact.logical import hosted
from elastic_harness.exact.metrics import LogicalMetric, logical_metrics, take_changes, updated_at
from elastic_harness.exact.pace import Pace
from elastic_harness.exact.randomness import seed_generators
from elastic_harness.exact.reduce import PlainReducer, TreeReducer, start_broadcast
from elastic_harness.exact.refused import refuse_inexact
from elastic_harness.exact.step_log import Record, Recorder, Told, combined, replay, start_gather, taken_in

if TYPE_CHECKING:
    from elastic_harness.strategy import ElasticStrategy


class ExactTraining:
    """Computes the steps of one worker.

    Args:
        strategy: the strategy it works for, in its place of the generation.
        logical_world_size: number of logical ranks.
        bitwise: whether gradients are added in the order of the tree.

    Attributes:
        pace: how long the workers take for their steps.
    """

    def __init__(self, strategy: ElasticStrategy, logical_world_size: int, *, bitwise: bool) -> None:
        self.logical_world_size = logical_world_size
        # As Lightning seeds its own samplers.
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        self._strategy = strategy
        self._kind = TreeReducer if bitwise else PlainReducer
        self._reducer: TreeReducer | None = None
        self._loader: ElasticLoader | None = None
        self._records: list[Record] = []
        self._metrics: dict[str, LogicalMetric] = {}
        self._before_hooks: list[tuple[Tensor, int]] = []
        self.pace = Pace(strategy.root_device)

    def train_loader(self, loader: object) -> ElasticLoader:
        """Take over the user's training loader.

        Raises:
            ConfigError: it cannot be taken over exactly.
        """
        refuse_inexact(loader, "train_dataloader")
        assert isinstance(loader, DataLoader)
        progress = self._module.trainer.fit_loop.epoch_loop.batch_progress
        strategy = self._strategy
        ranks = hosted(strategy.global_rank, strategy.world_size, self.logical_world_size)
        size, position = self.logical_world_size, lambda: progress.current.ready
        self._loader = ElasticLoader(loader, self.seed, ranks, size, position, self.pace.begin)
        return self._loader

    def check_loaders(self) -> None:
        """Refuse several training loaders at once.

        Raises:
            ConfigError: there are several.
        """
        if self._module.trainer.train_dataloader is not self._loader:
            refuse_inexact(self._module.trainer.train_dataloader, "train_dataloader")

    def keep_reload_epochs(self) -> None:
        """Reload loaders in the epochs in which an undisturbed run does, wherever this start begins."""
        trainer = self._module.trainer
        every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if every and trainer.current_epoch:
            begun = trainer.current_epoch // every * every
            trainer.fit_loop._last_train_dl_reload_epoch = begun
            trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = begun

    def epoch_state(self) -> dict[str, int]:
        """What the number of a step in its epoch means, as part of a checkpoint."""
        if self._loader is None:
            return {}
        samples = {
            "train_dataloader.batch_size": self._loader.batch_size,
            "train_dataloader.samples": self._loader.samples,
        }
        return {"seed": self.seed, **samples, "steps": int(self._module.trainer.num_training_batches)}

    def check_resumed(self, recorded: Mapping[str, int]) -> None:
        """Refuse to go on within an epoch of other samples than it was begun with.

        Args:
            recorded: the ``epoch_state`` of the checkpoint; empty if there is none.

        Raises:
            ConfigError: with every difference.
        """
        done = self._module.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if not 0 < done < recorded.get("steps", 0):
            return
        problems = [
            f"{name}={value} must be the {recorded[name]} of the checkpoint, which was written after {done} of "
            f"{recorded['steps']} steps of an epoch, or its other steps would be other samples: set it to "
            f"{recorded[name]}, change it from the end of an epoch on, or start another run."
            for name, value in self.epoch_state().items()
            if name != "steps" and value != recorded[name]
        ]
        if problems:
            raise ConfigError(problems)

    def before_batch_start(self, batch: Any) -> None:
        """Have the ``on_train_batch_start`` hooks draw the same random numbers on every worker, and note the batch."""
        step = self._step
        self._before_hooks = _tensors(batch)
        seed_generators(self.seed, "batch start", step.epoch, step.step)

    def after_batch_start(self, batch: Any) -> None:
        """Refuse a batch that ``on_train_batch_start`` hooks changed: the other logical ranks have none.

        Raises:
            ConfigError: it was changed.
        """
        before, self._before_hooks = self._before_hooks, []
        same = [(id(tensor), version) for tensor, version in before]
        if self.logical_world_size > 1 and [(id(tensor), version) for tensor, version in _tensors(batch)] != same:
            raise ConfigError(
                "on_train_batch_start changes the batch, and it is called once a step, for one of the logical ranks "
                "that a worker hosts: change it in on_after_batch_transfer or training_step, which are called for "
                "each, or use elastic.consistency=none."
            )

    def training_step(self, *args: Any) -> Any:
        """The user's ``training_step``, once for each logical rank hosted here, the lowest last.

        Args:
            args: its arguments for the lowest rank: the batch, and maybe ``batch_idx``.

        Returns:
            What it returned for the lowest rank.
        """
        step, module = self._step, self._module
        reducer = self._started_reducer(step.active)
        lowest, *others = step.parts
        self._records, self._metrics = [], logical_metrics(module)
        buffers = [buffer.detach().clone() for buffer in module.buffers()] if others else []
        for part in others:
            self._compute_other(reducer, step, part, args[1:])
            # Each logical rank begins with logical rank 0's buffers; what it makes of them goes.
            for buffer, before in zip(module.buffers(), buffers, strict=True):
                buffer.detach().copy_(before)
        output = self._run(step, lowest, args)
        _loss(output)
        return output

    def backward(self, loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Backward for the lowest rank; then every parameter has the gradient of the whole step.

        Hooks see what they see under DDP: the loss before, the reduced gradients after. What was logged and the
        buffers travel beside the gradients, so that the workers wait for each other once a step, here at the end.
        """
        step, module, precision = self._step, self._module, self._strategy.precision_plugin
        lowest, reducer = step.parts[0], self._reducer
        assert reducer is not None
        loss = precision.pre_backward(loss * _weight(step, lowest), module)
        arrived = start_gather(Told(self._records, take_changes(self._metrics), self.pace.seconds))
        if lowest.count:
            reducer.expect(lowest.logical_rank)
        precision.backward(loss, module, optimizer, *args, **kwargs)
        reducer.launch()
        self.pace.end(len(step.parts))
        # Not before: with checkpointing, a backward runs layers again, and these may change their buffers.
        take_buffers = start_broadcast(module.buffers() if self._strategy.world_size > 1 else ())
        reducer.finish()
        take_buffers()
        everyones = arrived()
        self.pace.hear([told.seconds for told in everyones])
        records = taken_in(everyones, self._metrics)
        replay(combined(records), module.trainer.fit_loop.epoch_loop._results, module)
        # The rest of the step is one for all logical ranks, and so are its random numbers.
        seed_generators(self.seed, "update", step.epoch, step.step)
        return precision.post_backward(loss, module)

    @property
    def _module(self) -> pl.LightningModule:
        module = self._strategy.lightning_module
        assert module is not None
        return module

    @property
    def _step(self) -> Step:
        assert self._loader is not None
        assert self._loader.current is not None
        return self._loader.current

    def _started_reducer(self, active: int) -> TreeReducer:
        """The reducer, made anew when other parameters are trained, as a callback that unfreezes layers has it."""
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        before = self._reducer
        if before is None or [*map(id, before.parameters)] != [*map(id, parameters)]:
            if before is not None:
                before.close()
            strategy = self._strategy
            place = bucket.Place(strategy.global_rank, strategy.world_size, self.logical_world_size)
            self._reducer = self._kind(parameters, place)
        assert self._reducer is not None
        self._reducer.start(active)
        return self._reducer

    def _compute_other(self, reducer: TreeReducer, step: Step, part: Part, args: Iterable[Any]) -> None:
        """Forward and backward for a logical rank other than the lowest, whose batch Lightning does not know of."""
        strategy, module, precision = self._strategy, self._module, self._strategy.precision_plugin
        seed_generators(self.seed, "transfer", step.epoch, step.step, part.logical_rank)
        batch = precision.convert_input(part.batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = strategy.batch_to_device(batch, dataloader_idx=0)
        for parameter in reducer.parameters:
            parameter.grad = None
        loss = _loss(self._run(step, part, (batch, *args))) * _weight(step, part)
        scaler = getattr(precision, "scaler", None)
        precision.backward(loss if scaler is None else scaler.scale(loss), module, module.trainer.optimizers[0])
        reducer.add(part.logical_rank)

    def _run(self, step: Step, part: Part, args: Iterable[Any]) -> Any:
        """The user's ``training_step`` for one logical rank."""
        module, loop = self._module, self._module.trainer.fit_loop.epoch_loop
        results = loop._results
        loop._results = recorder = Recorder(results, part.logical_rank, part.count)
        metrics, place = self._metrics.values(), ("train", part.logical_rank)
        seed_generators(self.seed, "step", step.epoch, step.step, part.logical_rank)
        try:
            with (
                self._strategy.precision_plugin.train_step_context(),
                updated_at(metrics, place, keep=part.count > 0),
                collectives.refused("training_step"),
            ):
                output = module.training_step(*args)
        finally:
            loop._results = results
        if part.count:
            self._records += recorder.records
        return output


def _weight(step: Step, part: Part) -> float:
    """The share of a logical rank's samples in the step."""
    return part.count / step.size


def _loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"training_step returned {'no loss' if loss is None else type(loss).__name__} for a logical rank, and all "
            "of them take part in a step: return a tensor for every batch (zero times the loss to leave one out), or "
            "use elastic.consistency=none."
        )
    return loss


def _tensors(batch: Any) -> list[tuple[Tensor, int]]:
    """The tensors of a batch, and how often each was changed in place."""
    found: list[tuple[Tensor, int]] = []

    def note(tensor: Tensor) -> Tensor:
        found.append((tensor, tensor._version))
        return tensor

    apply_to_collection(batch, Tensor, note, allow_frozen=True)
    return found


def set_deterministic() -> None:
    """Have torch use deterministic algorithms on GPUs, which the order of sums in its kernels depends on."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())
    torch.backends.cudnn.benchmark = False
