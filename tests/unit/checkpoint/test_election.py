"""Every node gets the most advanced state that any of them can reach; gloo processes, no Lightning."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import fsspec
import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore

from elastic_harness.checkpoint.election import elect
from elastic_harness.checkpoint.node_memory import state_path
from elastic_harness.messages import Assignment

CONTENT = bytes(range(256)) * 300_000  # more than one block
Held = tuple[str | None, int]


def node(rank: int, held: Held, folder: Path) -> None:
    torch.set_num_threads(1)  # those of the process it was forked from are not there
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    memory = folder / f"memory_{rank}"
    memory.mkdir()
    place = Assignment(0, rank, 0, 2, rank, 2, "", 0, *held, 0, (str(memory),), "", "")
    path, step = elect(place, FileStore(f"{folder}/store", 2), torch.device("cpu"))
    (folder / f"elected_{rank}").write_text(f"{path} {step}")
    dist.destroy_process_group()


def elected(held: tuple[Held, Held], folder: Path) -> list[str]:
    fork = multiprocessing.get_context("fork")  # they share what is in fsspec's memory
    nodes = [fork.Process(target=node, args=(rank, each, folder)) for rank, each in enumerate(held)]
    for process in nodes:
        process.start()
    for process in nodes:
        process.join()
    assert [process.exitcode for process in nodes] == [0, 0]
    return [(folder / f"elected_{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize("place", ["memory://election/step_00000007.ckpt", "local.ckpt"])
@pytest.mark.parametrize("older", [(None, -1), ("nowhere.ckpt", 3)])
def test_elect_when_one_node_has_the_newest_state_then_the_other_gets_it(
    tmp_path: Path, place: str, older: Held
) -> None:
    newest = place if "://" in place else str(tmp_path / place)
    with fsspec.open(newest, "wb") as file:
        file.write(CONTENT)
    received = state_path(tmp_path / "memory_0", 7)
    assert elected((older, (newest, 7)), tmp_path) == [f"{received} 7", f"{newest} 7"]
    assert received.read_bytes() == CONTENT
    assert list((tmp_path / "memory_1").iterdir()) == []


def test_elect_when_no_node_has_a_state_then_there_is_none(tmp_path: Path) -> None:
    assert elected(((None, -1), (None, -1)), tmp_path) == ["None -1", "None -1"]


def test_elect_when_both_reach_the_same_step_then_each_takes_its_own(tmp_path: Path) -> None:
    assert elected((("a.ckpt", 7), ("b.ckpt", 7)), tmp_path) == ["a.ckpt 7", "b.ckpt 7"]
