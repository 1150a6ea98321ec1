"""Hosting, dealing and adding: properties for any number of samples, logical ranks and workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_harness.exact.logical import Deal, TreeSum, hosted, seed_of, subtrees

sizes = st.integers(1, 64)
deals = st.builds(Deal, st.integers(1, 500), st.integers(1, 9), st.integers(1, 12), st.booleans())


@given(sizes, st.data())
def test_hosted_when_dealt_then_contiguous_even_and_complete(logical: int, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, logical))
    ranges = [hosted(rank, world, logical) for rank in range(world)]
    assert [rank for each in ranges for rank in each] == list(range(logical))
    lengths = {len(each) for each in ranges}
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


@given(deals)
def test_deal_when_an_epoch_is_dealt_then_each_sample_comes_once_in_order(deal: Deal) -> None:
    ranks = range(deal.logical_world_size)
    order = list(range(deal.samples))
    seen = [i for step in range(deal.steps) for rank in ranks for i in order[deal.share(step, rank)]]
    step_size = deal.batch_size * deal.logical_world_size
    assert seen == order[: deal.steps * step_size if deal.drop_last else None]


@given(deals)
def test_deal_when_the_last_step_is_short_then_it_is_dealt_evenly_lowest_ranks_first(deal: Deal) -> None:
    for step in range(deal.steps):
        counts = [len(range(*deal.share(step, rank).indices(deal.samples))) for rank in range(deal.logical_world_size)]
        assert counts == sorted(counts, reverse=True)
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == deal.size(step)
        assert sum(count > 0 for count in counts) == deal.active(step)
        assert step == deal.steps - 1 or min(counts) == deal.batch_size


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.data())
def test_tree_when_parts_are_added_by_workers_then_the_sum_has_the_same_bits(
    values: list[float], data: st.DataObject
) -> None:
    logical = data.draw(st.integers(len(values), 64))
    world = data.draw(st.integers(1, logical))
    plain: TreeSum[float] = TreeSum(len(values), float.__add__)
    for rank, value in enumerate(values):
        plain.put((0, rank), value)

    whole: TreeSum[float] = TreeSum(len(values), float.__add__)
    for rank in range(world):
        part: TreeSum[float] = TreeSum(len(values), float.__add__)
        ranks = [each for each in hosted(rank, world, logical) if each < len(values)]
        for each in data.draw(st.permutations(ranks)):
            part.put((0, each), values[each])
        assert sorted(part.nodes) == subtrees(hosted(rank, world, logical), len(values))
        for node, value in part.nodes.items():
            whole.put(node, value)
    assert whole.total.hex() == plain.total.hex()


def test_tree_when_there_are_four_then_pairs_are_added_first() -> None:
    tree: TreeSum[str] = TreeSum(5, lambda left, right: f"({left}{right})")
    for rank in range(5):
        tree.put((0, rank), "abcde"[rank])
    assert tree.total == "(((ab)(cd))e)"


@given(sizes, st.data())
def test_subtrees_when_hosted_by_any_number_of_workers_then_few_sums_are_held(
    logical: int, data: st.DataObject
) -> None:
    world = data.draw(st.integers(1, logical))
    for rank in range(world):
        assert len(subtrees(hosted(rank, world, logical), logical)) <= logical.bit_length() + 1


@given(st.lists(st.integers(0, 2**32), min_size=2, max_size=4))
def test_seed_of_when_a_part_differs_then_the_seed_does(parts: list[int]) -> None:
    assert seed_of(*parts) == seed_of(*parts)
    assert seed_of(*parts) != seed_of(*parts[:-1], parts[-1] + 1)
    assert seed_of("item", *parts) != seed_of("step", *parts)
