"""The rules that values keep, one broken at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.test_config import problems_of


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("elastic.min_nodes", 0, "must be at least 1"),
        ("elastic.min_nodes", 2, "must be between 1 and elastic.max_nodes=1"),
        ("elastic.max_nodes", True, "must be an integer"),
        ("elastic.max_nodes", "many", "must be an integer"),
        ("elastic.nproc_per_node", 0, "must be a number of at least 1, auto, gpu or cpu"),
        ("elastic.nproc_per_node", "gpus", "must be a number of at least 1, auto, gpu or cpu"),
        ("elastic.nproc_per_node", 1.5, "must be a number of at least 1, auto, gpu or cpu"),
        ("elastic.logical_world_size", 0, "must be at least 1"),
        ("elastic.logical_world_size", "all", "must be an integer"),
        ("elastic.consistency", "exact", "must be bitwise, batch or none"),
        ("elastic.num_threads", 0, "must be at least 1"),
        ("elastic.monitor_interval", 0, "must be more than 0 and at most 5"),
        ("rendezvous.backend", "zookeeper", "must be c10d, etcd, etcd_v2 or static"),
        ("rendezvous.endpoint", 2379, "must be text or a list (text) or null"),
        ("rendezvous.endpoint", ["a:1", "b:1"], "must be one HOST:PORT with rendezvous=c10d"),
        ("rendezvous.join_timeout", 0, "must be at least 1 second"),
        ("rendezvous.last_call_timeout", -1, "must be at least 0 seconds"),
        ("rendezvous.read_timeout", 0, "must be between 0.1 and 60 seconds"),
        ("rendezvous.keep_alive_interval", 0.01, "must be between 0.1 and 60 seconds"),
        ("rendezvous.keep_alive_attempts", 2, "must be between 3 and 100, or a node that is merely slow is expelled"),
        ("rendezvous.cacert", "ca.pem", "must be null with rendezvous=c10d"),
        ("rendezvous.local_addr", 7, "must be text or null"),
        ("restart.policy", "always", "must be on_failure, exit_code or never"),
        ("restart.max_restarts", -2, "must be at least -1"),
        ("restart.window_seconds", 0, "must be more than 0"),
        ("restart.refund_after_steps", -1, "must be at least 0"),
        ("restart.backoff", 3, "must be a mapping"),
        ("restart.backoff.factor", 0.5, "must be at least 1"),
        ("restart.backoff.initial", 1, "is not a key: did you mean initial_seconds?"),
        ("restart.backoff.initial_seconds", 61, "must be at most restart.backoff.max_seconds=60.0"),
        ("restart.backoff.jitter", 2, "must be between 0 and 1"),
        ("restart.backoff.max_seconds", "a minute", "must be a number"),
        ("restart.retryable_exit_codes", [3], "has no effect with restart.policy=on_failure"),
        ("restart.retryable_exit_codes", [0], "must hold numbers between 1 and 255"),
        ("restart.permanent_errors", ["ValueEror"], "Python has no such exception: did you mean ValueError?"),
        ("restart.permanent_errors", ["print"], "Python has no such exception"),
        ("restart.permanent_errors", ["IOError"], "another name of OSError: use that one"),
        ("restart.permanent_errors", ["..x"], "no name"),
        ("restart.permanent_errors", [".MyError"], "no name"),
        ("watchdog.hang_timeout", 0, "must be more than 0"),
        ("watchdog.hang_timeout", 1e15, "at most 1000000"),
        ("restart.permanent_errors", ["${nope}"], "refers to nope, which does not exist"),
        ("watchdog.startup_timeout", -1, "must be more than 0"),
        ("watchdog.straggler_factor", 1, "must be more than 1"),
        ("watchdog.straggler_seconds", 0, "must be more than 0"),
        ("checkpoint.every_n_steps", -1, "must be at least 0"),
        ("checkpoint.keep_last", 0, "must be at least 1"),
        ("checkpoint.keep_best", -1, "must be at least 0"),
        ("checkpoint.dir", 3, "must be text or null"),
        ("checkpoint.dir", "", "must be a folder or a URL"),
        ("checkpoint.dir", "nowhere://x", "Protocol not known: nowhere"),
        ("preemption.grace_seconds", -1, "must be more than 0"),
        ("preemption.grace_seconds", "30s", "must be a number"),
        ("preemption.provider", "azure", "must be aws, gcp, slurm or null"),
        ("preemption.endpoint", "169.254.169.254", "must be an http:// URL"),
        ("preemption.endpoint", "http://host:port", "must be an http:// URL"),
        ("preemption.endpoint", "http://localhost", "must go with preemption.provider=aws or gcp"),
        ("preemption.file", "", "must be a path"),
        ("preemption.poll_interval", 0, "must be more than 0 and at most 60"),
        ("objective.metric", 3, "must be text or null"),
        ("objective.direction", "up", "must be max or min"),
        ("seed", -1, "must be between 0 and 4294967295"),
        ("seed", 2**32, "must be between 0 and 4294967295"),
        ("seed", "x", "must be an integer"),
        ("run_id", "a/b", "must be a plain name"),
        ("run_id", "..", "must be a plain name"),
        ("run_id", "", "must be a plain name"),
        ("resume", "no/such.ckpt", "there is no such file"),
        ("trainer.devices", 2, "is set by the harness: use elastic.nproc_per_node"),
        ("trainer.strategy", "ddp", "is set by the harness"),
        ("model", None, "must be set"),
        ("data", {}, "must be set"),
        ("trainer", None, "must be set"),
        ("optimizer", {"lr": 1}, "has no _target_"),
        ("callbacks.a", {"x": 1}, "has no _target_"),
        ("callbacks", "lr_monitor", "must be a mapping"),
    ],
)
def test_parse_when_a_value_breaks_a_rule_then_key_value_and_rule_are_named(key: str, value: Any, words: str) -> None:
    (problem,) = problems_of(**{key.replace(".", "__"): value})
    assert problem.startswith(key)
    assert words in problem


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"restart": {"policy": "never", "max_restarts": 5}}, "restart.max_restarts=5 has no effect with"),
        ({"watchdog": {"enabled": False, "hang_timeout": 3}}, "watchdog.hang_timeout=3"),
    ],
)
def test_parse_when_two_keys_contradict_each_other_then_both_are_named(group: dict[str, Any], words: str) -> None:
    (problem,) = problems_of(**group)
    assert problem.startswith(words)
