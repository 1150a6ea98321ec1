from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from elastic_harness.exception_report import report


def caught(raise_it: object) -> BaseException:
    try:
        raise_it()  # type: ignore[operator]
    except BaseException as exception:
        return exception
    raise AssertionError


def raise_here() -> None:
    raise RuntimeError("first line\nboom-7")


def test_report_when_the_users_code_raises_then_its_line_is_the_place() -> None:
    raised = report(caught(raise_here))
    assert raised.name == "RuntimeError"
    assert raised.message == "boom-7"
    assert raised.place == f"{__file__}:{raise_here.__code__.co_firstlineno + 1}"
    assert "RuntimeError: first line" in raised.traceback
    assert not raised.consequence
    assert raised.exit_code is None


def test_report_when_a_library_raises_then_the_place_is_where_the_user_called_it() -> None:
    raised = report(caught(lambda: json.loads("{")))
    assert raised.place.startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("exception", "consequence"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"), True),
        (torch.distributed.DistNetworkError("client socket has timed out"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_report_when_a_peer_is_gone_then_it_is_a_consequence(exception: Exception, consequence: bool) -> None:
    assert report(exception).consequence is consequence


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (3, 3), ("text", 1)])
def test_report_when_the_worker_exits_then_its_code_is_kept(code: object, expected: int) -> None:
    assert report(SystemExit(code)).exit_code == expected


def test_report_when_an_exception_calls_itself_permanent_then_so_does_the_report() -> None:
    class DamagedError(ValueError):
        permanent = True

    assert report(DamagedError("x")).permanent
    assert not report(ValueError("x")).permanent


class TwoArgumentsError(Exception):
    """Cannot be made from a message alone."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)


class Broken(Dataset[int]):
    """Fails as it is told to, in whatever process it is asked."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if self.how == "raise":
            raise KeyError("no such sample")
        if self.how == "two arguments":
            raise TwoArgumentsError("a", "b")
        if self.how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def loaded(how: str) -> None:
    list(DataLoader(Broken(how), num_workers=1))


def test_report_when_a_loader_process_raises_then_its_own_line_and_message_are_told() -> None:
    raised = report(caught(lambda: loaded("raise")))
    assert (raised.name, raised.message, raised.in_loader) == ("KeyError", "'no such sample'", True)
    assert raised.place.startswith(f"{__file__}:")
    assert not raised.killed_by


def test_report_when_a_loader_process_is_killed_then_the_signal_is_named() -> None:
    raised = report(caught(lambda: loaded("kill")))
    assert (raised.in_loader, raised.killed_by) == (True, "SIGKILL")


def test_report_when_a_loader_process_leaves_then_that_is_told() -> None:
    raised = report(caught(lambda: loaded("exit")))
    assert (raised.in_loader, raised.killed_by) == (True, None)
    assert "exited unexpectedly" in raised.message


def test_report_when_asked_then_the_types_are_named_as_they_are_configured() -> None:
    assert report(ModuleNotFoundError("x")).types == (
        "ModuleNotFoundError",
        "ImportError",
        "Exception",
        "BaseException",
    )
    assert report(json.JSONDecodeError("x", "", 0)).types[:2] == ("json.decoder.JSONDecodeError", "ValueError")


class SilentError(RuntimeError):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no")


def test_report_when_a_message_cannot_be_shown_or_is_endless_then_there_is_one_all_the_same() -> None:
    assert report(SilentError()).message == "its message cannot be shown: ValueError('no')"
    assert len(report(ValueError("x" * 10_000)).message) < 600


def test_report_when_a_loaders_exception_cannot_be_made_anew_then_its_own_name_counts() -> None:
    raised = report(caught(lambda: loaded("two arguments")))
    assert (raised.name, raised.message) == ("TwoArgumentsError", "('a', 'b')")
    assert raised.types[0] == f"{__name__}.TwoArgumentsError"


class WithBrokenProperty(ValueError):  # noqa: N818
    """Cannot say whether it is permanent."""

    @property
    def permanent(self) -> bool:
        raise KeyError("no")


def test_report_when_it_cannot_be_asked_whether_it_is_permanent_then_it_is_not() -> None:
    assert not report(WithBrokenProperty()).permanent


def test_report_when_a_worker_leaves_with_an_odd_code_then_it_is_that_of_the_system() -> None:
    assert report(SystemExit(-5)).exit_code == 251
    assert report(SystemExit(300)).exit_code == 44
