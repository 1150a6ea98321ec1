from __future__ import annotations

import json

import pytest
import torch

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
