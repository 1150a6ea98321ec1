"""The schema, and ``parse``: every hole that Hydra leaves open is closed, all mistakes at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry
from omegaconf import OmegaConf

from elastic_harness.config import SCHEMAS, RunConfig, allowed_keys, parse, to_yaml
from elastic_harness.entry import register_resolvers
from elastic_harness.errors import ConfigError

PROJECT = Path(__file__).parents[3]
register_resolvers()


def config(**changes: Any) -> Any:
    """A config that parses, with dotted keys replaced."""
    cfg = OmegaConf.create(
        {
            "run_id": "${new_run_id:}",
            "model": {"_target_": "a.Model", "lr": 0.1},
            "data": {"_target_": "a.Data"},
            "trainer": {"max_epochs": 1},
            **{group: {} for group in SCHEMAS},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, merge=False, force_add=True)
    return cfg


def problems_of(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(config(**changes), "/runs/x", None)
    return raised.value.problems


def test_options_when_listed_then_no_knob_was_added_or_lost() -> None:
    assert {group: allowed_keys(group) for group in ("", *SCHEMAS)} == {
        "": [
            *("run_id", "seed", "resume", "objective", "elastic", "rendezvous", "restart", "checkpoint", "preemption"),
            *("watchdog", "model", "data", "optimizer", "scheduler", "trainer", "logger", "callbacks"),
        ],
        "objective": ["metric", "direction"],
        "elastic": [
            *("min_nodes", "max_nodes", "nproc_per_node", "logical_world_size", "consistency"),
            *("num_threads", "monitor_interval"),
        ],
        "rendezvous": [
            *("backend", "endpoint", "join_timeout", "last_call_timeout", "read_timeout"),
            *("keep_alive_interval", "keep_alive_attempts", "local_addr"),
            *("cacert", "cert", "key", "user", "password"),
        ],
        "restart": [
            *("policy", "max_restarts", "window_seconds", "refund_after_steps", "backoff"),
            *("retryable_exit_codes", "permanent_errors"),
        ],
        "checkpoint": ["dir", "every_n_steps", "every_seconds", "keep_last", "keep_best", "rescue"],
        "preemption": ["grace_seconds", "provider", "endpoint", "file", "lead_seconds", "poll_interval"],
        "watchdog": ["enabled", "hang_timeout", "startup_timeout", "straggler_factor", "straggler_seconds"],
    }


def test_parse_when_all_is_well_then_plain_containers_come_back() -> None:
    run = parse(config(model__lr="${trainer.max_epochs}", elastic__max_nodes=1), "/runs/x", "digits")
    assert run.model == {"_target_": "a.Model", "lr": 1}
    assert type(run.model) is dict
    assert (run.run_dir, run.experiment, run.seed) == ("/runs/x", "digits", 42)


@pytest.mark.parametrize("group", SCHEMAS)
def test_parse_when_a_key_is_unknown_then_the_allowed_ones_are_named(group: str) -> None:
    first = fields(SCHEMAS[group])[0].name
    (problem,) = problems_of(**{f"{group}__{first}x": 3})
    assert problem.startswith(f"{group}.{first}x=3 is not a key: did you mean {first}? Allowed: ")


def test_parse_when_a_top_level_key_is_unknown_then_it_is_refused() -> None:
    assert problems_of(sede=1)[0].startswith("sede=1 is not a top-level key: did you mean seed? Allowed: ")
    assert problems_of(lr=0.3) == ["lr=0.3 is not a top-level key: did you mean model.lr?"]


def test_parse_when_values_are_missing_then_all_are_listed_with_how_to_set_them_h03() -> None:
    found = problems_of(model__width="???", data__root="???", model__depth="${model.width}", elastic__min_nodes="???")
    assert len(found) == 3
    assert "model.width=??? must be set: add model.width=VALUE to the command line" in found[0]
    assert {problem.partition("=")[0] for problem in found} == {"model.width", "data.root", "elastic.min_nodes"}


def test_parse_when_an_interpolation_leads_nowhere_then_the_key_is_named_h03() -> None:
    (problem,) = problems_of(model__width="${model.lrr}")
    assert problem == "model.width=${model.lrr} refers to model.lrr, which does not exist: did you mean ${model.lr}?"


def test_parse_when_an_environment_variable_is_not_set_then_it_is_named_h03(monkeypatch: Any) -> None:
    monkeypatch.delenv("DATA_ROOT", raising=False)
    (problem,) = problems_of(data__root=["${oc.env:DATA_ROOT}"])
    assert problem.startswith("data.root[0]=${oc.env:DATA_ROOT} needs the environment variable DATA_ROOT")


def test_parse_when_a_value_refers_to_itself_then_it_is_refused() -> None:
    assert "model.a" in problems_of(model__a="${model.a}")[0]


def test_parse_when_an_experiment_lost_its_header_then_the_header_is_asked_for_h02() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(config(experiment={"trainer": {"max_epochs": 3}}), "/runs/x", "copy")
    assert "experiment/copy.yaml begin with the line `# @package _global_`" in str(raised.value)
    assert "trainer" in str(raised.value)


def test_parse_when_a_group_folder_is_missing_then_the_plain_key_is_refused() -> None:
    assert "conf/optimizer" in problems_of(optimizer="sgd")[0]
    assert "must be a mapping" in problems_of(elastic="default")[0]
    assert "recipes/*/experiment" in problems_of(experiment="digits")[0]


@pytest.mark.parametrize("key", ["elastic__min_nodes", "elastic__max_nodes"])
def test_parse_when_a_range_is_given_then_the_two_keys_are_named_r10(key: str) -> None:
    (problem,) = problems_of(**{key: "1:4"})
    assert problem == (
        f"{key.replace('__', '.')}=1:4 must be an integer: a range is written as two keys, "
        "elastic.min_nodes=1 elastic.max_nodes=4."
    )


def test_parse_when_there_can_be_more_workers_than_logical_ranks_then_the_arithmetic_is_shown() -> None:
    (problem,) = problems_of(elastic__logical_world_size=2, elastic__nproc_per_node=3)
    assert problem.startswith(
        "elastic.logical_world_size=2 must be at least the 3 workers of elastic.nproc_per_node=3 times "
        "elastic.max_nodes=1"
    )


def test_parse_when_slurm_would_end_a_job_that_stops_then_the_arithmetic_is_shown() -> None:
    (problem,) = problems_of(preemption__provider="slurm", preemption__grace_seconds=100)
    assert problem.startswith(
        "preemption.lead_seconds=60 must be at least the 105 s of preemption.grace_seconds=100 and "
        "preemption.poll_interval=5"
    )


def test_parse_when_consistency_is_none_then_logical_ranks_do_not_matter() -> None:
    cfg = config(elastic__logical_world_size=2, elastic__nproc_per_node=3, elastic__consistency="none")
    assert parse(cfg, "/runs/x", None).elastic.logical_world_size == 2


def test_parse_when_several_things_are_wrong_then_all_are_listed() -> None:
    found = problems_of(sede=1, elastic__min_nodes=0, seed=-1, model__w="???", restart__policy="x")
    assert len(found) == 5


def test_parse_when_resume_is_a_file_then_its_path_is_made_absolute_h01(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("epoch=3-step=40.ckpt").touch()
    run = parse(config(resume="epoch=3-step=40.ckpt"), "/runs/x", None)
    assert run.resume == str(tmp_path / "epoch=3-step=40.ckpt")


def test_parse_when_checkpoints_go_to_s3_without_its_package_then_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # an earlier test may have imported it
    (problem,) = problems_of(checkpoint__dir="s3://bucket/a")
    assert problem.startswith("checkpoint.dir=s3://bucket/a must be")
    assert "elastic-harness[s3]" in problem


@pytest.mark.parametrize("place", ["checkpoints", "/data/a", "file:///data/a", "memory://a"])
def test_parse_when_checkpoints_go_to_a_folder_or_a_known_url_then_it_is_taken(place: str) -> None:
    assert parse(config(checkpoint__dir=place), "/runs/x", None).checkpoint.dir == place


def test_parse_when_resume_is_force_then_it_is_no_path() -> None:
    assert parse(config(resume="force"), "/runs/x", None).resume == "force"


def test_parse_when_a_callback_is_null_then_it_is_left_out() -> None:
    run = parse(config(callbacks={"a": None, "b": {"_target_": "x.Y"}}), "/runs/x", None)
    assert run.callbacks == {"b": {"_target_": "x.Y"}}


def test_to_yaml_when_read_again_then_it_is_the_same_run() -> None:
    run = parse(config(run_id="night1"), "/runs/x", None)
    again: Any = OmegaConf.to_container(OmegaConf.create(to_yaml(run)))
    assert RunConfig(**again).model == run.model
    assert again["elastic"]["min_nodes"] == 1


def test_to_yaml_when_there_is_a_password_then_it_is_left_out(monkeypatch: Any) -> None:
    monkeypatch.setenv("ETCD_PASSWORD", "hidden")
    etcd = {"backend": "etcd", "endpoint": "a:2379", "user": "u", "password": "${oc.env:ETCD_PASSWORD}"}
    run = parse(config(rendezvous=etcd), "/runs/x", None)
    assert run.rendezvous.password == "hidden"
    assert "hidden" not in to_yaml(run) + repr(run)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"backend": "etcd"}, "rendezvous.endpoint=null must be set with rendezvous=etcd"),
        ({"backend": "etcd", "endpoint": "a", "cacert": "no.pem"}, "rendezvous.cacert=no.pem must be a file"),
        ({"backend": "etcd", "endpoint": "a", "cert": __file__}, "must come with rendezvous.key"),
        ({"backend": "etcd", "endpoint": "a", "user": "u"}, "rendezvous.user=u must come with rendezvous.password"),
        ({"backend": "etcd", "endpoint": "a", "password": "p"}, "rendezvous.password=*** must come with"),
        ({"backend": "c10d", "password": "p"}, "rendezvous.password=*** must be null with rendezvous=c10d"),
    ],
)
def test_parse_when_keys_of_the_rendezvous_contradict_then_both_are_named(group: Any, words: str) -> None:
    (problem,) = problems_of(rendezvous=group)
    assert words in problem


def test_parse_when_there_are_several_nodes_then_an_endpoint_is_needed() -> None:
    found = problems_of(elastic__max_nodes=2)
    assert any(problem.startswith("rendezvous.endpoint=null must be set with rendezvous=c10d") for problem in found)


def test_parse_when_static_nodes_may_change_then_it_is_refused() -> None:
    group = {"backend": "static", "endpoint": "a:1"}
    problems = problems_of(rendezvous=group, elastic__max_nodes=2)
    assert any("elastic.min_nodes=1 must equal elastic.max_nodes=2 with rendezvous=static" in each for each in problems)


def test_light_modules_when_imported_then_torch_is_not() -> None:
    names = ["config", "recipes", "errors", "entry", "events", "restart", "config.targets", "verify", "cli"]
    code = "; ".join(f"import elastic_harness.{name}" for name in names)
    code += "; import sys; print({'torch', 'pytorch_lightning'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("folder", ["imagenet", "recipes"])
def test_recipes_when_read_then_none_imports_the_harness(folder: str) -> None:
    files = list((PROJECT / folder).rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "elastic_harness" for name in names), path
