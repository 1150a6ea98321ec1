"""The rules of the preemption group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from elastic_harness.config.key_rules import KeyRule
from elastic_harness.config.spelling import shown

if TYPE_CHECKING:
    from elastic_harness.config import RunConfig


def _is_http_url(value: str) -> bool:
    try:
        url = urlsplit(value)
        return url.scheme == "http" and bool(url.hostname) and url.port != 0
    except ValueError:  # of a port that is no number
        return False


ONE_KEY: tuple[KeyRule, ...] = (
    ("preemption.grace_seconds", lambda value: value > 0, "must be more than 0", "the default is 25"),
    (
        "preemption.provider",
        lambda value: value in (None, "aws", "gcp", "slurm"),
        "must be aws, gcp, slurm or null",
        "use preemption=aws, preemption=gcp or preemption=slurm; null asks nobody",
    ),
    (
        "preemption.endpoint",
        lambda value: value is None or _is_http_url(value),
        "must be an http:// URL, such as http://169.254.169.254",
        "null is the provider's own",
    ),
    ("preemption.file", lambda value: value != "", "must be a path", "null is none"),
    (
        "preemption.poll_interval",
        lambda value: 0 < value <= 60,
        "must be more than 0 and at most 60",
        "the default is 5",
    ),
)


def preemption_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    """What several keys of the group must fulfil together.

    Args:
        run: the run.
        bad: dotted keys whose problem is known already.
    """
    own = run.preemption
    if {key for key in bad if key.startswith("preemption.")}:
        return
    if own.endpoint is not None and own.provider not in ("aws", "gcp"):
        yield (
            f"preemption.endpoint={own.endpoint} must go with preemption.provider=aws or gcp, whose metadata server it "
            f"is, and that is {shown(own.provider)}: use preemption=aws or preemption=gcp, or leave it out."
        )
    least = own.grace_seconds + own.poll_interval
    if own.provider == "slurm" and own.lead_seconds < least:
        yield (
            f"preemption.lead_seconds={own.lead_seconds:g} must be at least the {least:g} s of "
            f"preemption.grace_seconds={own.grace_seconds:g} and preemption.poll_interval={own.poll_interval:g}, or "
            "Slurm ends the job while it stops: raise it, or lower grace_seconds."
        )
