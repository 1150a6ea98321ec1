from __future__ import annotations

from elastic_harness.stragglers import Straggler, Stragglers


def test_look_when_one_worker_is_slow_then_it_is_named_once() -> None:
    stragglers = Stragglers(1.5)
    assert stragglers.look([0.10, 0.11, 0.14, 0.09]) == []
    assert stragglers.look([0.10, 0.11, 0.20, 0.10]) == [Straggler(2, 0.20, 0.10)]
    assert stragglers.look([0.10, 0.11, 0.20, 0.10]) == []
    assert [each.rank for each in stragglers.look([0.30, 0.11, 0.20, 0.10, 0.10])] == [0]


def test_look_when_there_are_two_then_the_slower_one_is_named() -> None:
    assert [each.rank for each in Stragglers(1.5).look([0.3, 0.1])] == [0]
    assert Stragglers(1.5).look([0.1]) == []
