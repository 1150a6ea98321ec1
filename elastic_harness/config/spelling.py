"""How a mistake is worded: values as the user typed them, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def shown(value: Any) -> str:
    """The value as it would be typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def did_you_mean(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to a misspelt one, or None if nothing is close."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown(name: str, allowed: Iterable[str], what: str = "Allowed") -> str:
    """The end of a sentence about an unknown name: ``did you mean lr? Allowed: eps, lr.``"""
    names = sorted(allowed)
    guess = did_you_mean(name, names)
    listed = f"{what}: {', '.join(names)}." if names else f"{what}: nothing."
    return f"did you mean {guess}? {listed}" if guess else listed
