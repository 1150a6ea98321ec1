"""Rules of the group ``restart``."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from elastic_harness.config.key_rules import MAX_SECONDS, KeyRule, at_least, between
from elastic_harness.config.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from elastic_harness.config import RestartConfig, RunConfig

ONE_KEY: tuple[KeyRule, ...] = (
    (
        "restart.policy",
        lambda value: value in ("on_failure", "exit_code", "never"),
        "must be on_failure, exit_code or never",
        "use restart=on_failure, restart=exit_code or restart=never",
    ),
    ("restart.max_restarts", at_least(-1), "must be at least -1", "0 means that nothing is restarted, -1 no limit"),
    (
        "restart.window_seconds",
        lambda value: value is None or value > 0,
        "must be more than 0",
        "null counts the failures of the whole run",
    ),
    ("restart.refund_after_steps", at_least(0), "must be at least 0", "0 is never"),
    ("restart.backoff.initial_seconds", at_least(0), "must be at least 0", "0 restarts at once"),
    ("restart.backoff.factor", at_least(1), "must be at least 1", "1 waits equally long each time"),
    (
        "restart.backoff.max_seconds",
        between(0, MAX_SECONDS),
        f"must be between 0 and {MAX_SECONDS:.0f}",
        "the default is 60",
    ),
    ("restart.backoff.jitter", between(0, 1), "must be between 0 and 1", "0 is none"),
    (
        "restart.retryable_exit_codes",
        lambda codes: all(1 <= code <= 255 for code in codes),
        "must hold numbers between 1 and 255",
        "deaths by signal are retried without being listed",
    ),
)


def restart_rules(run: RunConfig, bad: set[str]) -> Iterator[str]:
    """The rules for several keys of the group, and for names."""
    restart, backoff = run.restart, run.restart.backoff
    keys = ("restart.backoff.initial_seconds", "restart.backoff.max_seconds")
    if not bad.intersection(keys) and backoff.initial_seconds > backoff.max_seconds:
        yield (
            f"restart.backoff.initial_seconds={shown(backoff.initial_seconds)} must be at most "
            f"restart.backoff.max_seconds={shown(backoff.max_seconds)}: lower the first or raise the second."
        )
    keys = ("restart.retryable_exit_codes", "restart.policy")
    if not bad.intersection(keys) and restart.retryable_exit_codes and restart.policy != "exit_code":
        yield (
            f"restart.retryable_exit_codes={shown(restart.retryable_exit_codes)} has no effect with "
            f"restart.policy={restart.policy}: use restart=exit_code, or leave it out."
        )
    keys = ("restart.max_restarts", "restart.policy")
    usual = type(restart).max_restarts
    if not bad.intersection(keys) and restart.policy == "never" and restart.max_restarts not in (0, usual):
        yield (
            f"restart.max_restarts={restart.max_restarts} has no effect with restart.policy=never: "
            "use restart=on_failure, or leave it out."
        )
    if "restart.permanent_errors" not in bad:
        for name in restart.permanent_errors:
            if "." not in name:
                yield from _unlike(name, getattr(builtins, name, None), "Python", dir(builtins))
            elif not all(part.isidentifier() for part in name.split(".")):
                yield f"restart.permanent_errors has {shown(name)}, which is no name: write it as in my_module.MyError."


def unknown_errors(restart: RestartConfig) -> Iterator[str]:
    """Exceptions of modules that are not there. This imports the modules."""
    for name in restart.permanent_errors:
        *parts, attribute = name.split(".")
        if not parts:
            continue
        owner = ".".join(parts)
        try:
            found = _imported(parts)
        except Exception as error:  # whatever a module does when it is imported
            yield f"restart.permanent_errors has {name}, and {owner} cannot be imported: {error}."
        else:
            yield from _unlike(name, getattr(found, attribute, None), owner, dir(found))


def _imported(parts: Sequence[str]) -> object:
    """A module, or a class in one."""
    try:
        return importlib.import_module(".".join(parts))
    except ModuleNotFoundError:
        if len(parts) == 1:
            raise
        owner = _imported(parts[:-1])
        if not isinstance(getattr(owner, parts[-1], None), type):
            raise
        return getattr(owner, parts[-1])


def dotted_name(kind: type) -> str:
    """What an exception is called in ``restart.permanent_errors``."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _unlike(name: str, found: object, where: str, known: Iterable[str]) -> Iterator[str]:
    """What is wrong with the name of an exception, which has to be the one that it has where it is defined."""
    if isinstance(found, type) and issubclass(found, BaseException):
        if dotted_name(found) != name:
            yield f"restart.permanent_errors has {name}, which is another name of {dotted_name(found)}: use that one."
        return
    guess = did_you_mean(name.rpartition(".")[2], known)
    yield (
        f"restart.permanent_errors has {shown(name)}, and {where} has no such exception: "
        f"{f'did you mean {guess}? ' if guess else ''}name one that is not built in with its module, as in "
        "my_module.MyError."
    )
