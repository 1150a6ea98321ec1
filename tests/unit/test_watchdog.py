"""When workers are taken for hung, and which one for the culprit."""

from __future__ import annotations

import pytest

from elastic_harness.config import WatchdogConfig
from elastic_harness.messages import Phase
from elastic_harness.watchdog import _WAITING, Still, Watchdog, _main_thread

STARTING, TRAINING, EVALUATING = Phase.STARTING, Phase.TRAINING, Phase.EVALUATING


class Workers:
    """Two workers, and the time."""

    def __init__(self, **config: object) -> None:
        self.watchdog = Watchdog(WatchdogConfig(**config))  # type: ignore[arg-type]
        self.now, self.beats = 0.0, [0, 0]

    def pass_by(self, seconds: float, phase: Phase, *, moved: int | None = None) -> Still | None:
        """Let so many seconds go by, looked at every second, and then have one worker move."""
        still = None
        for _ in range(int(seconds)):
            self.now += 1.0
            still = still or self.watchdog.look(self.beats, phase, self.now)
        if moved is not None:
            self.beats[moved] += 1
        return still


def test_look_when_nothing_moves_for_the_given_time_then_says_what_stands_still() -> None:
    workers = Workers(hang_timeout=20.0, startup_timeout=60.0)
    assert workers.pass_by(50, STARTING, moved=1) is None
    assert workers.pass_by(5, TRAINING, moved=0) is None
    still = workers.pass_by(22, TRAINING)
    assert still == Still("in training", 20.0)


def test_look_when_one_worker_still_moves_then_nothing_is_said() -> None:
    workers = Workers(hang_timeout=20.0)
    for _ in range(20):
        assert workers.pass_by(15, TRAINING, moved=1) is None


def test_look_when_no_batch_is_done_then_it_has_the_time_of_a_start_whatever_moved() -> None:
    workers = Workers(hang_timeout=20.0, startup_timeout=60.0)
    for _ in range(3):
        assert workers.pass_by(5, STARTING, moved=0) is None
    assert workers.pass_by(59, STARTING) is None
    assert workers.pass_by(3, STARTING) is not None


def test_look_when_no_time_is_given_then_it_is_learned_for_training_and_validation_apart() -> None:
    workers = Workers(startup_timeout=60.0)
    for phase, pause in ((TRAINING, 2), (EVALUATING, 30), (TRAINING, 2)):
        for _ in range(3):
            workers.pass_by(pause, phase, moved=0)
    assert workers.pass_by(299, TRAINING) is None, "no less than 300 s"
    assert workers.pass_by(3, TRAINING) == Still("in training", 300.0)
    workers.pass_by(1, EVALUATING, moved=0)
    workers.pass_by(1, EVALUATING, moved=0)
    assert workers.pass_by(20 * 30, EVALUATING) is None, "twice as long after an alarm"


def test_look_when_it_was_a_false_alarm_then_the_next_one_takes_twice_as_long() -> None:
    workers = Workers()
    for limit in (300, 600, 1200, 2400, 2400):
        workers.watchdog.begin(workers.now)
        for _ in range(3):
            workers.pass_by(1, TRAINING, moved=0)
        assert workers.pass_by(limit - 2, TRAINING) is None
        assert workers.pass_by(4, TRAINING) is not None


def test_look_when_the_agent_itself_was_stopped_then_nothing_is_learned_and_nobody_accused() -> None:
    workers = Workers(hang_timeout=20.0)
    for _ in range(3):
        workers.pass_by(1, TRAINING, moved=0)
    workers.now += 1000.0
    assert workers.pass_by(19, TRAINING) is None
    assert workers.pass_by(4, TRAINING) is not None


def test_look_when_it_is_off_then_never_says_anything() -> None:
    assert Workers(enabled=False, startup_timeout=5.0).pass_by(10_000, TRAINING) is None


STACKS = """
Thread 0x00007f1 (most recent call first):
  File "/x/elastic_harness/rescue.py", line 60 in _listen

Current thread 0x00007f2 (most recent call first):
  File "{top}", line 7 in wait
  File "/home/me/model.py", line 3 in training_step
  File "/x/elastic_harness/worker.py", line 80 in main
  File "/home/me/train.py", line 21 in train
"""


@pytest.mark.parametrize(
    ("top", "waits"),
    [
        ("/x/torch/distributed/distributed_c10d.py", True),
        ("/x/torch/autograd/graph.py", True),
        ("/x/elastic_harness/exact/bucket.py", True),
        ("/x/elastic_harness/checkpoint/election.py", True),
        ("/x/elastic_harness/checkpoint/boundary.py", True),
        ("/x/torch/utils/data/dataloader.py", False),
        ("/home/me/model.py", False),
    ],
)
def test_stacks_when_read_then_the_training_thread_says_whether_it_waits_for_others(top: str, waits: bool) -> None:
    main = _main_thread(STACKS.format(top=top))
    assert main.lstrip().startswith(f'File "{top}"')
    assert "train.py" not in main  # which the process was forked in
    assert (_WAITING.search(main.splitlines()[1]) is not None) is waits
