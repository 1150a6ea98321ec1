from __future__ import annotations

import pytest

from elastic_harness.config import RestartConfig
from elastic_harness.restart import Failure, RestartPolicy

KILLED = Failure(1, "signal", "SIGKILL", step=30, made_progress=True, exit_code=-9)
BOOM = Failure(1, "exception", "RuntimeError", "boom", "model.py:3", step=30, made_progress=True)
EARLY = Failure(0, "exception", "ValueError", "no", "model.py:9", step=0, made_progress=False)
LEFT = Failure(2, "exit", "", step=5, made_progress=True, exit_code=0)
ZYGOTE = Failure(None, "zygote", "", step=7, made_progress=True)


def other(failure: Failure, **changes: object) -> Failure:
    return Failure(**{**failure.__dict__, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "failures", "restart", "reason"),
    [
        (RestartConfig(), [KILLED], True, "restart 1 of 10"),
        (RestartConfig(), [KILLED, KILLED], True, "restart 2 of 10"),
        (RestartConfig(), [other(KILLED, step=0, made_progress=False)], True, "restart 1 of 10"),
        (RestartConfig(), [LEFT], True, "restart 1 of 10"),
        (RestartConfig(), [ZYGOTE], True, "restart 1 of 10"),
        (RestartConfig(), [BOOM], True, "restart 1 of 10"),
        (RestartConfig(), [EARLY], False, "before the first step"),
        (RestartConfig(), [BOOM, BOOM], False, "crash loop"),
        (RestartConfig(), [BOOM, other(BOOM, rank=0)], False, "crash loop"),
        (RestartConfig(), [BOOM, other(BOOM, step=31)], True, "restart 2 of 10"),
        (RestartConfig(), [BOOM, other(BOOM, place="model.py:4")], True, "restart 2 of 10"),
        (RestartConfig(), [BOOM, KILLED, BOOM], True, "restart 3 of 10"),
        (RestartConfig(), [other(BOOM, permanent=True)], False, "it would happen again"),
        (RestartConfig(max_restarts=0), [KILLED], False, "budget spent (0 of 0)"),
        (RestartConfig(max_restarts=1), [KILLED, KILLED], False, "budget spent (1 of 1)"),
        (RestartConfig(policy="never"), [KILLED], False, "restart.policy=never"),
    ],
)
def test_decide_when_failures_are_given_then_follows_the_table_p03(
    config: RestartConfig, failures: list[Failure], restart: bool, reason: str
) -> None:
    decision = RestartPolicy(config).decide(failures)
    assert decision.restart is restart
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (KILLED, "rank 1 was killed by SIGKILL, perhaps out of memory"),
        (other(KILLED, name="SIGSEGV"), "rank 1 was killed by SIGSEGV"),
        (BOOM, "rank 1 raised RuntimeError at model.py:3: boom"),
        (LEFT, "rank 2 left early with exit code 0"),
        (ZYGOTE, "the process that forks the workers (the zygote) died"),
    ],
)
def test_describe_when_asked_then_is_one_plain_sentence(failure: Failure, words: str) -> None:
    assert failure.describe() == words
