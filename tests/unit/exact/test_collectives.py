from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import all_gather_object, all_reduce, barrier

from elastic_harness.errors import ConfigError
from elastic_harness.exact import collectives


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: all_reduce(torch.ones(1)), "all_reduce"),
        (barrier, "barrier"),
        (lambda: all_gather_object([None], 1), "all_gather_object"),
        (lambda: dist.broadcast(torch.ones(1), 0), "broadcast"),
    ],
)
def test_refused_when_a_collective_is_called_then_it_is_named_however_it_was_imported(
    call: object, name: str, group: None
) -> None:
    assert callable(call)
    with collectives.refused("training_step"), pytest.raises(ConfigError) as raised:
        call()
    assert f"training_step calls torch.distributed.{name} (" in str(raised.value)
    assert "test_collectives.py:" in str(raised.value) or name == "barrier"
    call()  # and goes again afterwards


def test_refused_when_only_ranks_are_asked_for_then_nothing_is_refused(group: None) -> None:
    with collectives.refused("training_step"):
        assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (0, 1, True)
