from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_harness.config import BackoffConfig, RestartConfig
from elastic_harness.restart import Failure, RestartPolicy

KILLED = Failure(1, "signal", "SIGKILL", step=30, made_progress=True, exit_code=-9)
BOOM = Failure(1, "exception", "RuntimeError", "boom", "model.py:3", step=30, made_progress=True)
EARLY = Failure(0, "exception", "ValueError", "no", "model.py:9", step=0, made_progress=False)
LEFT = Failure(2, "exit", "", step=5, made_progress=True, exit_code=0)
ZYGOTE = Failure(None, "zygote", "", step=7, made_progress=True)
HUNG = Failure(1, "hang", "in training", "for 20 s", "model.py:3", step=5, made_progress=True)
CODE_3 = Failure(1, "exit", "", step=5, made_progress=True, exit_code=3)
IMPORT = Failure(
    *(0, "exception", "ModuleNotFoundError", "No module named 'x'"),
    step=9, made_progress=True, types=("ModuleNotFoundError", "ImportError", "Exception"),
)  # fmt: skip
BY_CODE = RestartConfig(policy="exit_code")


def other(failure: Failure, **changes: object) -> Failure:
    return Failure(**{**failure.__dict__, **changes})  # type: ignore[arg-type]


def at(time: float) -> Failure:
    return other(KILLED, time=time)


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
        (RestartConfig(max_restarts=-1), [KILLED] * 50, True, "restart 50"),
        (RestartConfig(), [HUNG, HUNG], True, "restart 2 of 10"),
        (RestartConfig(), [IMPORT], False, "restart.permanent_errors has ImportError"),
        (RestartConfig(permanent_errors=[]), [IMPORT], True, "restart 1 of 10"),
        (BY_CODE, [KILLED], True, "restart 1 of 10"),
        (BY_CODE, [HUNG], True, "restart 1 of 10"),
        (BY_CODE, [ZYGOTE], True, "restart 1 of 10"),
        (BY_CODE, [BOOM], False, "does not retry exit code 1"),
        (BY_CODE, [LEFT], False, "does not retry exit code 0"),
        (BY_CODE, [CODE_3], False, "does not retry exit code 3"),
        (BY_CODE, [other(CODE_3, exit_code=128)], True, "restart 1 of 10"),
        (RestartConfig(policy="exit_code", retryable_exit_codes=[3]), [CODE_3], True, "restart 1 of 10"),
        (RestartConfig(policy="exit_code", retryable_exit_codes=[1]), [BOOM], True, "restart 1 of 10"),
        (RestartConfig(max_restarts=1, window_seconds=60), [at(0), at(59)], False, "budget spent (1 of 1)"),
        (RestartConfig(max_restarts=1, window_seconds=60), [at(0), at(61)], True, "restart 1 of 1"),
        (RestartConfig(max_restarts=1, refund_after_steps=9), [KILLED, other(KILLED, step=38)], False, "budget spent"),
        (RestartConfig(max_restarts=1, refund_after_steps=9), [KILLED, other(KILLED, step=39)], True, "restart 1 of 1"),
        (RestartConfig(max_restarts=1, refund_after_steps=0), [KILLED, other(KILLED, step=9**9)], False, "budget"),
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
        (HUNG, "rank 1 stood still in training at model.py:3 for 20 s"),
        (other(KILLED, out_of_memory=True), "rank 1 was killed by SIGKILL: the kernel ran out of memory"),
        (other(KILLED, node="b"), "rank 1 on b was killed by SIGKILL, perhaps out of memory"),
        (other(KILLED, in_loader=True), "a loader process of rank 1 was killed by SIGKILL, perhaps out of memory"),
        (other(BOOM, in_loader=True), "a loader process of rank 1 raised RuntimeError at model.py:3: boom"),
    ],
)
def test_describe_when_asked_then_is_one_plain_sentence(failure: Failure, words: str) -> None:
    assert failure.describe() == words


def test_delay_when_failures_follow_without_new_steps_then_grows_from_none_up_to_the_longest() -> None:
    policy = RestartPolicy(RestartConfig(backoff=BackoffConfig(2.0, 3.0, 10.0, 0.0)))
    assert [policy.decide([KILLED] * count).delay for count in range(1, 6)] == [0.0, 2.0, 6.0, 10.0, 10.0]
    endless = RestartPolicy(RestartConfig(max_restarts=-1, backoff=BackoffConfig(0.01, 1e300, 10.0, 0.0)))
    assert endless.decide([KILLED] * 2000).delay == 10.0
    further = [other(KILLED, step=step) for step in (30, 30, 31, 31, 31)]
    assert [policy.decide(further[:count]).delay for count in range(1, 6)] == [0.0, 2.0, 0.0, 2.0, 6.0]


def test_delay_when_there_is_jitter_then_all_nodes_agree_on_it_and_jobs_differ() -> None:
    policy = RestartPolicy(RestartConfig())
    delays = {policy.decide([at(0), at(float(time))]).delay for time in range(20)}
    assert len(delays) == 20
    assert all(0.9 <= delay <= 1.1 for delay in delays)
    assert policy.decide([at(0), at(3.0)]).delay == policy.decide([at(1), at(3.0)]).delay


failures = st.builds(
    Failure,
    rank=st.integers(0, 3),
    kind=st.sampled_from(["exception", "signal", "exit", "hang", "zygote"]),
    name=st.sampled_from(["SIGKILL", "ValueError"]),
    step=st.integers(0, 3000),
    made_progress=st.just(True),
    exit_code=st.integers(-15, 255),
    time=st.floats(0, 1e6),
)
configs = st.builds(
    RestartConfig,
    policy=st.sampled_from(["on_failure", "exit_code", "never"]),
    max_restarts=st.integers(-1, 5),
    window_seconds=st.none() | st.floats(1, 1e5),
    refund_after_steps=st.integers(0, 2000),
)


@given(st.lists(failures, min_size=1, max_size=12), configs)
def test_decide_when_anything_failed_then_the_budget_and_the_waits_keep_their_bounds(
    failures: list[Failure], config: RestartConfig
) -> None:
    decision = RestartPolicy(config).decide(failures)
    assert decision == RestartPolicy(config).decide(failures), "a pure function"
    assert 0 <= decision.delay <= config.backoff.max_seconds * (1 + config.backoff.jitter)
    if config.policy == "never" or config.max_restarts == 0:
        assert not decision.restart
    if decision.restart and config.max_restarts > 0 and not config.refund_after_steps and not config.window_seconds:
        assert len(failures) <= config.max_restarts
    if not decision.restart and config.policy == "on_failure" and failures[-1].was_killed:
        assert config.max_restarts != -1, "a death by signal is retried as long as there is budget"


@given(failures)
def test_from_json_when_another_node_told_of_a_failure_then_it_is_the_same(failure: Failure) -> None:
    assert Failure.from_json(json.loads(json.dumps({**asdict(failure), "generation": 3}))) == failure
