"""Rules of the group ``watchdog``."""

from __future__ import annotations

from elastic_harness.config.key_rules import MAX_SECONDS, KeyRule

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
