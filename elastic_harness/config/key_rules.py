"""What the rule of a single key looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KeyRule = tuple[str, Callable[[Any], bool], str, str]
"""Key, what its value must fulfil, that in words, and the fix."""


MAX_SECONDS = 1e6
"""More than what waits for something else could mean."""


def at_least(low: float) -> Callable[[Any], bool]:
    """The value is no less."""
    return lambda value: value >= low


def between(low: float, high: float) -> Callable[[Any], bool]:
    """The value is neither less nor more."""
    return lambda value: low <= value <= high
