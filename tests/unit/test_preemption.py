"""Notices of every provider, from a metadata server on loopback, a clock and a file."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_harness import preemption
from elastic_harness.config import PreemptionConfig
from elastic_harness.preemption import AwsSpot, FileAppears, GoogleCloud, SlurmEnd, Watcher, watchers_of, watching
from tests.metadata_server import ACTION, MAINTENANCE, PREEMPTED, MetadataServer

TERMINATE = '{"action": "terminate", "time": "2026-05-04T08:22:00Z"}'


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def test_aws_when_there_is_no_action_then_there_is_no_notice_and_one_token_is_enough(server: MetadataServer) -> None:
    server.answers["/latest/meta-data/events/recommendations/rebalance"] = (
        200,
        '{"noticeTime": "2026-05-04T08:22:00Z"}',
    )
    watcher = AwsSpot(server.endpoint)
    assert watcher.notice() is None
    assert watcher.notice() is None
    assert server.asked == ["PUT /latest/api/token", f"GET {ACTION}", f"GET {ACTION}"]


def test_aws_when_its_token_has_expired_then_it_gets_another(server: MetadataServer) -> None:
    watcher = AwsSpot(server.endpoint)
    assert watcher.notice() is None
    server.expire_tokens()
    server.answers[ACTION] = (200, TERMINATE)
    assert watcher.notice() == "notice from AWS: terminate at 2026-05-04T08:22:00Z"


@pytest.mark.parametrize(
    ("preempted", "maintenance", "notice"),
    [
        ("FALSE", "NONE", None),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", None),
        ("TRUE", "NONE", "notice from Google Cloud: this instance is being preempted"),
        (
            "FALSE",
            "TERMINATE_ON_HOST_MAINTENANCE",
            "notice from Google Cloud: this instance ends for the maintenance of its host",
        ),
    ],
)
def test_google_cloud_when_asked_then_only_what_ends_the_machine_is_a_notice(
    server: MetadataServer, preempted: str, maintenance: str, notice: str | None
) -> None:
    server.answers |= {PREEMPTED: (200, f"{preempted}\n"), MAINTENANCE: (200, maintenance)}
    assert GoogleCloud(f"{server.endpoint}/").notice() == notice


@pytest.mark.parametrize("kind", [AwsSpot, GoogleCloud])
def test_cloud_when_the_environment_names_a_proxy_then_it_is_not_used(
    server: MetadataServer, kind: Callable[[str], Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert kind(server.endpoint).notice() is None


@pytest.mark.parametrize(
    ("kind", "path", "answer", "words"),
    [
        (AwsSpot, "/latest/api/token", (403, ""), "answers with status 403"),
        (AwsSpot, "/latest/api/token", (200, "<html>\n"), "instead of a token"),
        (AwsSpot, ACTION, (500, "sorry"), "answers with status 500"),
        (AwsSpot, ACTION, (302, ""), "answers with status 302"),
        (AwsSpot, ACTION, (200, "<html>"), "instead of an action"),
        (AwsSpot, ACTION, (200, "[1]"), "instead of an action"),
        (AwsSpot, ACTION, (200, "{}"), "instead of an action"),
        (GoogleCloud, PREEMPTED, (500, "TRUE"), "answers with status 500"),
        (GoogleCloud, MAINTENANCE, (404, "TERMINATE"), "answers with status 404"),
    ],
)
def test_cloud_when_its_answer_makes_no_sense_then_it_is_no_notice(
    server: MetadataServer, kind: Callable[[str], Watcher], path: str, answer: tuple[int, str], words: str
) -> None:
    server.answers[path] = answer
    watcher = kind(server.endpoint)
    with pytest.raises(ValueError, match=words):
        watcher.notice()
    del server.answers[path]
    server.answers |= {PREEMPTED: (200, "FALSE"), MAINTENANCE: (200, "NONE")}
    assert watcher.notice() is None, "it is asked again"


def test_google_cloud_when_another_server_answers_then_it_is_no_notice(server: MetadataServer) -> None:
    server.flavor, server.answers[PREEMPTED] = "", (200, "TRUE")
    with pytest.raises(ValueError, match="another server"):
        GoogleCloud(server.endpoint).notice()


@pytest.mark.parametrize(
    ("end", "notice", "words"),
    [
        ("1000061", None, ""),
        ("1000060", "notice from Slurm: the job ends at 1970-01-12T13:47:40Z", ""),
        ("1000001", "notice from Slurm: the job ends at 1970-01-12T13:46:41Z", ""),
        ("1000000", None, "its limit was moved"),
        ("never", None, "is 'never' instead of seconds"),
        (None, None, "is not set"),
    ],
)
def test_slurm_when_the_end_of_the_job_comes_near_then_there_is_a_notice(
    end: str | None, notice: str | None, words: str
) -> None:
    watcher = SlurmEnd(end, lead_seconds=60, clock=lambda: 1e6)
    if words:
        with pytest.raises(ValueError, match=words):
            watcher.notice()
    else:
        assert watcher.notice() == notice


def test_watchers_when_nothing_is_asked_for_then_none_looks_even_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1")
    assert watchers_of(PreemptionConfig()) == []


@pytest.mark.parametrize(("provider", "kind"), [("aws", AwsSpot), ("gcp", GoogleCloud), ("slurm", SlurmEnd)])
def test_watchers_when_a_provider_is_chosen_then_its_own_looks_beside_the_file(
    provider: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert [type(each) for each in watchers_of(PreemptionConfig(provider=provider, file="x"))] == [FileAppears, kind]


def test_watching_when_a_file_appears_then_it_stops_once(tmp_path: Path) -> None:
    notices: queue.Queue[str] = queue.Queue()
    file = tmp_path / "drain"
    with watching([FileAppears(str(file))], 0.001, notices.put):
        file.touch()
        assert notices.get(timeout=30) == f"notice from the file {file}, which is there"
    assert notices.empty()


class Lines(logging.Handler):
    """The lines that are logged while it is entered, as the agent's log takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    handler = Lines()
    preemption.log.addHandler(handler)
    preemption.log.setLevel(logging.INFO)
    yield handler.lines
    preemption.log.removeHandler(handler)
    preemption.log.setLevel(logging.NOTSET)


class Rounds:
    """A watcher that counts how often it is asked."""

    place = "rounds"

    def __init__(self, number: int) -> None:
        self.number = number
        self.over = threading.Event()

    def notice(self) -> None:
        self.number -= 1
        if self.number <= 0:
            self.over.set()


def test_watching_when_nothing_listens_there_then_that_is_said_once(logged: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        rounds = Rounds(5)
        with watching([AwsSpot(endpoint), rounds], 0.001, pytest.fail):
            assert rounds.over.wait(30)
    (line,) = logged
    assert f"preemption.provider=aws: the metadata server {endpoint} gives no answer (ConnectionRefused" in line


def test_watching_when_a_server_hangs_then_the_others_are_asked_and_the_end_does_not_wait(
    server: MetadataServer, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "_TIMEOUT_SECONDS", 0.05)
    server.going_on.clear()
    rounds = Rounds(3)
    with watching([GoogleCloud(server.endpoint), rounds], 0.001, pytest.fail):
        assert rounds.over.wait(30)
    (line,) = logged
    assert "gives no answer (TimeoutError" in line
    monkeypatch.setattr(preemption, "_TIMEOUT_SECONDS", 3600)
    asked = len(server.asked)
    with watching([GoogleCloud(server.endpoint)], 0.001, pytest.fail):
        while len(server.asked) == asked:
            threading.Event().wait(0.001)


def test_watching_when_a_server_that_failed_answers_again_then_its_notice_counts(
    server: MetadataServer, logged: list[str]
) -> None:
    notices: queue.Queue[str] = queue.Queue()
    server.answers[ACTION] = (500, "")
    rounds = Rounds(3)
    with watching([AwsSpot(server.endpoint), rounds], 0.001, notices.put):
        assert rounds.over.wait(30)
        server.answers[ACTION] = (200, TERMINATE)
        assert "terminate" in notices.get(timeout=30)
    assert len(logged) == 1
