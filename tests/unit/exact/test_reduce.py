"""The sum of gradients has the same bits for any number of workers; gloo processes, no Lightning."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter

from elastic_harness.exact.bucket import Place
from elastic_harness.exact.logical import TreeSum, hosted
from elastic_harness.exact.reduce import PlainReducer, TreeReducer, start_broadcast

LOGICAL = 8
SHAPES = [(7, 3), (5,), (4, 2, 3, 3), (1,), (300,)]


def parameters() -> list[Parameter]:
    made = [Parameter(torch.zeros(shape)) for shape in SHAPES]
    made[2].data = made[2].data.contiguous(memory_format=torch.channels_last)
    return made


def gradient(number: int, logical_rank: int) -> torch.Tensor | None:
    """What a parameter gets from a logical rank: number 3 from none, number 1 from ranks 2 and 5 only."""
    if number == 3 or (number == 1 and logical_rank not in (2, 5)):
        return None
    noise = torch.Generator().manual_seed(100 * logical_rank + number)
    return torch.randn(SHAPES[number], generator=noise) * 10**logical_rank


def reduced(kind: Callable[..., TreeReducer], rank: int, world: int, active: int) -> list[Parameter]:
    params = parameters()
    reducer = kind(params, Place(rank, world, LOGICAL), bucket_bytes=200)
    for _ in range(2):  # the second step uses the buffers of the first, and overlaps with its last backward
        reducer.start(active)
        mine = [each for each in reversed(hosted(rank, world, LOGICAL)) if each < active]
        for logical_rank in mine:
            for parameter in params:
                parameter.grad = None
            if logical_rank == mine[-1]:
                reducer.expect(logical_rank)
            backward(params, logical_rank)
            if logical_rank != mine[-1]:
                reducer.add(logical_rank)
        reducer.launch()
        values = [torch.full((2,), rank), torch.full((3,), float(rank)), torch.full((), rank)]
        # Between the gradients, where one worker may have had a backward that sent them, and another none.
        take_values = start_broadcast(values if world > 1 else ())
        reducer.finish()
        take_values()
        assert world == 1 or not any(value.any() for value in values)
    return params


def backward(params: list[Parameter], logical_rank: int) -> None:
    """Have autograd make the gradients."""
    found = [gradient(number, logical_rank) for number in range(len(params))]
    terms = [(p * g).sum() for p, g in zip(params, found, strict=True) if g is not None]
    torch.stack(terms).sum().backward()


def digest(params: list[Parameter]) -> str:
    sha = hashlib.sha256()
    for parameter in params:
        sha.update(b"none" if parameter.grad is None else parameter.grad.contiguous().numpy().tobytes())
    return sha.hexdigest()


def worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    lines = [f"tree{active} {digest(reduced(TreeReducer, rank, world, active))}" for active in (8, 3, 1)]
    for active in (8, 1):
        params = reduced(PlainReducer, rank, world, active)
        expected = plain_sum(active)
        assert params[3].grad is None
        for number, parameter in enumerate(params):
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, expected[number])
    Path(folder, f"{world}-{rank}").write_text("\n".join(lines))
    dist.destroy_process_group()


def plain_sum(active: int) -> dict[int, torch.Tensor]:
    sums = {}
    for number in range(len(SHAPES)):
        tree: TreeSum[torch.Tensor] = TreeSum(active, torch.add)
        for logical_rank in range(active):
            found = gradient(number, logical_rank)
            tree.put((0, logical_rank), torch.zeros(SHAPES[number]) if found is None else found)
        sums[number] = tree.total
    return sums


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> dict[int, set[str]]:
    folder = tmp_path_factory.mktemp("reduce")
    fork = multiprocessing.get_context("fork")
    found = {}
    for world in (2, 3, 4, 5, 8):
        workers = [fork.Process(target=worker, args=(rank, world, str(folder))) for rank in range(world)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        found[world] = {Path(folder, f"{world}-{rank}").read_text() for rank in range(world)}
    return found


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_sum_when_any_number_of_workers_computes_it_then_has_the_bits_of_one(
    digests: dict[int, set[str]], world: int
) -> None:
    alone = "\n".join(f"tree{active} {digest(reduced(TreeReducer, 0, 1, active))}" for active in (8, 3, 1))
    assert digests[world] == {alone}


def test_sum_when_one_worker_computes_it_then_it_is_the_plain_tree_sum() -> None:
    params = reduced(TreeReducer, 0, 1, 8)
    expected = plain_sum(8)
    assert params[3].grad is None
    for number in (0, 1, 2, 4):
        grad: Any = params[number].grad
        assert torch.equal(grad, expected[number])
        assert grad.stride() == params[number].stride()


def test_reducer_when_it_has_run_then_holds_few_copies() -> None:
    params = parameters()
    reducer = TreeReducer(params, Place(0, 1, LOGICAL))
    for _ in range(3):
        reducer.start(LOGICAL)
        for logical_rank in (*range(1, LOGICAL), 0):
            reducer.add(logical_rank)
        reducer.finish()
    assert all(len(each._spare) + 1 <= 3 + 1 + 1 for each in reducer._sums)


def test_reducer_when_gradients_come_in_parts_from_the_first_step_on_then_nothing_leaves_early() -> None:
    (parameter,) = params = [Parameter(torch.ones(3))]
    reducer = TreeReducer(params, Place(0, 1, 1))
    for _ in range(2):
        parameter.grad = None
        reducer.start(1)
        reducer.expect(0)
        for factor in (2.0, 3.0):
            (factor * parameter).sum().backward()
        reducer.finish()
        assert parameter.grad is not None
        assert parameter.grad.tolist() == [5.0] * 3


def test_reducer_when_gradients_come_in_parts_later_then_it_says_so() -> None:
    (parameter,) = params = [Parameter(torch.ones(3))]
    reducer = TreeReducer(params, Place(0, 1, 1))
    for parts in (1, 2):
        parameter.grad = None
        reducer.start(1)
        reducer.expect(0)
        parameter.sum().backward()
        if parts == 2:
            with pytest.raises(RuntimeError, match="use_reentrant=False"):
                parameter.sum().backward()
        reducer.finish()
    reducer.close()
    parameter.sum().backward()
