"""Which state a generation starts from: the most advanced one that any node can reach. Every node gets it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import Store

from elastic_harness.checkpoint.node_memory import state_path
from elastic_harness.checkpoint.storage import open_storage
from elastic_harness.errors import CheckpointError

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
    places = [state_path(Path(folder), max(step, 0)) for folder in assignment.node_memory]
    _spread(mine, places, holders[0], takes=mine is None and assignment.local_rank == 0, device=device)
    return mine or next(str(path) for path in places if path.exists()), step


def _spread(mine: str | None, places: Sequence[Path], source: int, *, takes: bool, device: torch.device) -> None:
    """Send the file or object of one worker to all; those that take it write it to the first place with room."""
    sends = dist.get_rank() == source
    folder, _, name = (mine or "").rpartition("/")
    storage = open_storage(folder)
    size = torch.tensor([storage.size(name) if sends else 0], device=device)
    dist.broadcast(size, source)
    target = _with_room(places, int(size)) if takes else places[0]
    partial = _partial(target)
    with storage.open(name) if sends else partial.open("r+b") if takes else contextlib.nullcontext() as file:
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


def _with_room(places: Sequence[Path], size: int) -> Path:
    """The first place for a file of so many bytes, which are reserved.

    Raises:
        CheckpointError: there is none.
    """
    for path in places:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError), _partial(path).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
            return path
        _partial(path).unlink(missing_ok=True)
    raise CheckpointError(
        f"the newest state, {size:,} bytes that another node holds, cannot be put into "
        f"{' or '.join(str(path.parent) for path in places)}: free room there.",
        permanent=True,
    )


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
