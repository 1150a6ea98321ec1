"""Which state a generation starts from: the most advanced one that any node can reach. Every node gets it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import Store

from elastic_harness.checkpoint.node_memory import state_path
from elastic_harness.checkpoint.storage import open_storage

if TYPE_CHECKING:
    from elastic_harness.messages import Assignment

_BLOCK = 32 * 2**20


def elect(assignment: Assignment, store: Store, device: torch.device) -> tuple[str | None, int]:
    """Agree on a state with all workers; every one of them has to call it.

    A node that cannot reach the state, or only an older one, gets it from the one with the lowest number that can.

    Args:
        assignment: the worker's place, and what its node can reach.
        store: the generation's.
        device: where tensors have to be to be sent.

    Returns:
        The file to load, None if no node has any, and the run's own optimizer steps in it.
    """
    if assignment.local_rank == 0:
        found = json.dumps((assignment.resume_step, assignment.resume_path is not None, assignment.rank))
        store.set(f"reachable_state_{assignment.node_rank}", found)
    nodes = [json.loads(store.get(f"reachable_state_{node}")) for node in range(assignment.num_nodes)]
    step = max(step for step, _, _ in nodes)
    holders = [rank for its_step, has_one, rank in nodes if has_one and its_step == step]
    if not holders:
        return None, -1
    mine = assignment.resume_path if assignment.resume_step == step else None
    if len(holders) == assignment.num_nodes:
        return mine, step
    target = state_path(Path(assignment.node_memory[0]), max(step, 0))
    _spread(mine, target, holders[0], takes=mine is None and assignment.local_rank == 0, device=device)
    return mine or str(target), step


def _spread(mine: str | None, target: Path, source: int, *, takes: bool, device: torch.device) -> None:
    """Send the file or object of one worker to all; those that take it write it to ``target``."""
    sends = dist.get_rank() == source
    folder, _, name = (mine or "").rpartition("/")
    storage = open_storage(folder)
    size = torch.tensor([storage.size(name) if sends else 0], device=device)
    dist.broadcast(size, source)
    partial = target.with_name(f"{target.name}.partial")
    with storage.open(name) if sends else partial.open("wb") if takes else contextlib.nullcontext() as file:
        for start in range(0, int(size), _BLOCK):
            block = torch.empty(min(_BLOCK, int(size) - start), dtype=torch.uint8)
            if sends and file:
                file.readinto(block.numpy().data)  # type: ignore[attr-defined]
            block = block.to(device)
            dist.broadcast(block, source)
            if takes and file:
                file.write(block.cpu().numpy().data)
    if takes:
        partial.rename(target)
    dist.barrier()
