"""Rules of the group ``watchdog``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from elastic_harness.config.key_rules import MAX_SECONDS, KeyRule
from elastic_harness.config.spelling import shown

if TYPE_CHECKING:
    from elastic_harness.config import RunConfig

ONE_KEY: tuple[KeyRule, ...] = (
    (
        "watchdog.hang_timeout",
        lambda value: value is None or 0 < value <= MAX_SECONDS,
        f"must be more than 0 and at most {MAX_SECONDS:.0f}",
        "null learns it from the pauses there are",
    ),
    ("watchdog.straggler_factor", lambda value: value > 1, "must be more than 1", "the default is 1.5"),
    ("watchdog.straggler_seconds", lambda value: value > 0, "must be more than 0", "the default is 60"),
    (
        "watchdog.startup_timeout",
        lambda value: 0 < value <= MAX_SECONDS,
        f"must be more than 0 and at most {MAX_SECONDS:.0f}",
        "the default is 1800",
    ),
)


def watchdog_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    """The rules for several keys of the group."""
    limit = run.watchdog.hang_timeout
    if not bad.intersection({"watchdog.hang_timeout", "watchdog.enabled"}) and limit and not run.watchdog.enabled:
        yield (
            f"watchdog.hang_timeout={shown(limit)} has no effect with watchdog.enabled=false: "
            "use watchdog=default, or leave it out."
        )
