"""Does a configured value fit a type annotation? Annotations that are not understood fit everything.

Only what YAML can write is judged: null, booleans, numbers, text, lists and mappings. Both the schema and
the arguments of a ``_target_`` are checked with it. torch is not imported here.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any, Literal, Union, get_args, get_origin

_LISTS = (list, tuple, set, Sequence, Iterable, MutableSequence)
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    dict: "a mapping",
    None: "null",
    type(None): "null",
}


def fits(value: Any, annotation: Any) -> bool:
    """Whether the plain value may be given where this type is asked for."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, member) for member in args)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in args)
    if annotation in (None, type(None)):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str)
    if (origin or annotation) in _LISTS:
        return _fits_list(value, origin or annotation, args)
    if (origin or annotation) in (dict, Mapping):
        return isinstance(value, dict)
    # A tensor beside plain types, as in `lr: float | Tensor`: a config cannot hold one.
    return not (getattr(annotation, "__module__", "") == "torch" and annotation.__name__ == "Tensor")


def _fits_list(value: Any, origin: Any, args: tuple[Any, ...]) -> bool:
    if not isinstance(value, list):
        # Text is iterable too, but nobody who writes Iterable[str] wants its letters.
        return False
    if origin is tuple and args and args[-1] is not Ellipsis:
        return len(value) == len(args) and all(fits(item, arg) for item, arg in zip(value, args, strict=True))
    return not args or all(fits(item, args[0]) for item in value)


def spelt(annotation: Any) -> str:
    """The annotation in words, for the message: ``an integer or null``."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        choices = [c for member in args if get_origin(member) is Literal for c in get_args(member)]
        words = [_one_of(choices)] if choices else []
        words += [spelt(member) for member in args if get_origin(member) is not Literal]
        return " or ".join(dict.fromkeys(words))
    if origin is Literal:
        return _one_of(args)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if (origin or annotation) in _LISTS:
        of = [spelt(arg) for arg in args if arg is not Ellipsis]
        return f"a list ({', '.join(of)})" if of else "a list"
    return str(getattr(annotation, "__name__", annotation))


def _one_of(choices: Iterable[Any]) -> str:
    return "one of " + ", ".join(dict.fromkeys(str(choice) for choice in choices))
