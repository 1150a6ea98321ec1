"""Who is alive, by the observer's own clock."""

from __future__ import annotations

from elastic_harness.rendezvous.liveness import Liveness


def watch(liveness: Liveness, start: float, end: float, beats: dict[str, int]) -> None:
    """Look every tenth of a second."""
    for tenth in range(int(start * 10), int(end * 10) + 1):
        liveness.observe(beats, tenth / 10)


def test_liveness_when_a_counter_stands_still_then_its_node_is_dead_after_the_patience() -> None:
    liveness = Liveness(patience=2.0, interval=0.5)
    watch(liveness, 0, 1.9, {"a": 1, "b": 1})
    assert liveness.dead == set()
    watch(liveness, 2.0, 2.0, {"a": 1, "b": 2})
    assert liveness.dead == {"a"}


def test_liveness_when_a_counter_moves_again_then_its_node_lives() -> None:
    liveness = Liveness(patience=2.0, interval=0.5)
    watch(liveness, 0, 3, {"a": 1})
    watch(liveness, 3.1, 3.1, {"a": 2})
    assert liveness.dead == set()


def test_liveness_when_the_observer_could_not_look_then_that_is_not_held_against_others() -> None:
    liveness = Liveness(patience=2.0, interval=0.5)
    watch(liveness, 0, 1, {"a": 1})
    watch(liveness, 60, 61.9, {"a": 1})  # it was stopped for 59 seconds
    assert liveness.dead == set()
    watch(liveness, 62, 62.1, {"a": 1})
    assert liveness.dead == {"a"}


def test_liveness_when_every_look_is_slow_then_the_dead_are_found_all_the_same() -> None:
    liveness = Liveness(patience=2.0, interval=0.5)
    for second in range(6):
        liveness.observe({"a": 1}, float(second))
    assert liveness.dead == {"a"}
