"""The reproducible all-reduce beside a plain ``all_reduce`` of the same bytes, over gloo on this machine.

    python benchmarks/all_reduce.py

Each worker is a logical rank with one gradient, which lies in buckets already. The harness adds them in the order of
the tree and gives the parameters their sums; ``consistency=batch`` does the same around an ``all_reduce``. Rounds
alternate.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import Parameter

from elastic_harness.exact.bucket import Place
from elastic_harness.exact.reduce import BUCKET_BYTES, PlainReducer, TreeReducer

PARAMETERS_A_BUCKET = 10


def worker(rank: int, world_size: int, megabytes: int, rounds: int, store: str) -> None:
    """Measure on one rank; rank 0 prints."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    size = min(BUCKET_BYTES, megabytes * 2**20) // 4 // PARAMETERS_A_BUCKET
    count = megabytes * 2**20 // 4 // size
    parameters = [Parameter(torch.zeros(size)) for _ in range(count)]
    gradients = [torch.ones(size) for _ in range(count)]
    flats = [torch.ones(size * PARAMETERS_A_BUCKET) for _ in range(count // PARAMETERS_A_BUCKET)]

    def plain() -> None:
        works = [dist.all_reduce(flat, async_op=True) for flat in flats]
        for work in works:
            assert work is not None
            work.wait()

    kinds = {"bitwise": TreeReducer, "batch": PlainReducer}
    reducers = {name: kind(parameters, Place(rank, world_size, world_size)) for name, kind in kinds.items()}
    ways: dict[str, Callable[[], None]] = {"all_reduce": plain}
    ways |= {name: reducer.finish for name, reducer in reducers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            if name in reducers:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                reducers[name].start(world_size)
                reducers[name].add(rank)
            dist.barrier()
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    if rank == 0:
        medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        cells = [f"{median * 1e3:9.1f} ms {median / medians['all_reduce']:5.2f}" for median in medians.values()]
        print(f"{world_size:>7}{megabytes:>6} MB {''.join(cells)}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds, each measuring all (default: 9)")
    rounds = parser.parse_args().rounds
    fork = multiprocessing.get_context("fork")
    print(f"workers   size {'all_reduce, ratio':>18}{'bitwise, ratio':>18}{'batch, ratio':>18}", flush=True)
    for world_size in (2, 4):
        for megabytes in (10, 100):
            with tempfile.TemporaryDirectory() as folder:
                arguments = (world_size, megabytes, rounds, f"{folder}/store")
                workers = [fork.Process(target=worker, args=(rank, *arguments)) for rank in range(world_size)]
                for process in workers:
                    process.start()
                for process in workers:
                    process.join()


if __name__ == "__main__":
    main()
