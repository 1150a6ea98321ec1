"""The rules of the rendezvous group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_harness.config.key_rules import KeyRule, between
from elastic_harness.config.spelling import shown

if TYPE_CHECKING:
    from elastic_harness.config import RunConfig

_ETCD = ("etcd", "etcd_v2")
_BACKENDS = ("c10d", "static", *_ETCD)


ONE_KEY: tuple[KeyRule, ...] = (
    (
        "rendezvous.backend",
        lambda value: value in _BACKENDS,
        "must be c10d, etcd, etcd_v2 or static",
        "choose it as a whole, for example rendezvous=etcd",
    ),
    ("rendezvous.join_timeout", between(1, 1e6), "must be at least 1 second", "the default is 600"),
    (
        "rendezvous.last_call_timeout",
        between(0, 1e6),
        "must be at least 0 seconds",
        "0 starts as soon as elastic.min_nodes nodes are there; later ones join a running job",
    ),
    ("rendezvous.read_timeout", between(0.1, 60), "must be between 0.1 and 60 seconds", "the default is 1"),
    ("rendezvous.keep_alive_interval", between(0.1, 60), "must be between 0.1 and 60 seconds", "the default is 0.5"),
    (
        "rendezvous.keep_alive_attempts",
        between(3, 100),
        "must be between 3 and 100, or a node that is merely slow is expelled",
        "the default is 4; for a faster detection lower rendezvous.keep_alive_interval",
    ),
)


def rendezvous_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    """What several keys of the group must fulfil together.

    Args:
        run: the run.
        bad: dotted keys whose problem is known already.
    """
    if "rendezvous.backend" in bad:
        return
    yield from _endpoint_rule(run, bad)
    yield from _etcd_rules(run, bad)
    elastic = run.elastic
    if run.rendezvous.backend == "static" and elastic.min_nodes != elastic.max_nodes:
        yield (
            f"elastic.min_nodes={elastic.min_nodes} must equal elastic.max_nodes={elastic.max_nodes} with "
            "rendezvous=static, where nodes never change: set both to the number of nodes, or use rendezvous=etcd."
        )


def _endpoint_rule(run: RunConfig, bad: set[str]) -> Iterator[str]:
    backend, endpoint = run.rendezvous.backend, run.rendezvous.endpoint
    if "rendezvous.endpoint" in bad:
        return
    if not endpoint and (backend in _ETCD or run.elastic.max_nodes > 1):
        whose = "of etcd" if backend in _ETCD else "of the node that hosts the store, the same on all nodes"
        yield (
            f"rendezvous.endpoint={shown(endpoint)} must be set with rendezvous={backend} and "
            f"elastic.max_nodes={run.elastic.max_nodes}: add rendezvous.endpoint=HOST:PORT {whose}."
        )
    elif backend not in _ETCD and isinstance(endpoint, list):
        yield (
            f"rendezvous.endpoint={shown(endpoint)} must be one HOST:PORT with rendezvous={backend}: "
            "name the node that hosts the store, or use rendezvous=etcd, which may have several."
        )


def _etcd_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    values = asdict(run.rendezvous)
    given = [name for name in ("cacert", "cert", "key", "user", "password") if values[name] is not None]
    if run.rendezvous.backend not in _ETCD:
        for name in given:
            yield (
                f"rendezvous.{name}={_masked(name, values)} must be null with rendezvous={run.rendezvous.backend}, "
                "whose store has neither TLS nor users: leave it out, or use rendezvous=etcd."
            )
        return
    for name in given:
        if name in ("cacert", "cert", "key") and not Path(values[name]).is_file():
            yield f"rendezvous.{name}={values[name]} must be a file, and there is none: correct the path."
    for one, other in (("cert", "key"), ("key", "cert"), ("user", "password"), ("password", "user")):
        if one in given and other not in given and not {f"rendezvous.{one}", f"rendezvous.{other}"} & bad:
            yield (
                f"rendezvous.{one}={_masked(one, values)} must come with rendezvous.{other}: "
                f"give both{', the password as ${oc.env:NAME}' if 'user' in (one, other) else ''}, or neither."
            )


def _masked(name: str, values: dict[str, Any]) -> str:
    return "***" if name == "password" else str(values[name])
