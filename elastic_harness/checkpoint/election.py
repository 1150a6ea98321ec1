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
    assert assignment.node_memory is not None
    path = Path(mine) if mine is not None else state_path(Path(assignment.node_memory), max(step, 0))
    _spread(path, holders[0], takes=mine is None and assignment.local_rank == 0, device=device)
    return str(path), step


def _spread(path: Path, source: int, *, takes: bool, device: torch.device) -> None:
    """Send a file of one worker to all; those that take it write it."""
    sends = dist.get_rank() == source
    size = torch.tensor([path.stat().st_size if sends else 0], device=device)
    dist.broadcast(size, source)
    partial = path.with_name(f"{path.name}.partial")
    with path.open("rb") if sends else partial.open("wb") if takes else contextlib.nullcontext() as file:
        for start in range(0, int(size), _BLOCK):
            block = torch.empty(min(_BLOCK, int(size) - start), dtype=torch.uint8)
            if sends and file:
                file.readinto(block.numpy().data)
            block = block.to(device)
            dist.broadcast(block, source)
            if takes and file:
                file.write(block.cpu().numpy().data)
    if takes:
        partial.rename(path)
    dist.barrier()
