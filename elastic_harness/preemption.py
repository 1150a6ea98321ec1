"""Notices from outside that this node will go away, beside the signals that say so.

A watcher looks at one place that such a notice comes from. One thread of the agent asks each of them again and again
while workers run, and a notice then counts as a stop signal does. A place that cannot be asked is named once in the
agent's log, and never in the way of the training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from elastic_harness.config import PreemptionConfig

log = logging.getLogger(__name__)

_LINK_LOCAL = "http://169.254.169.254"
# A metadata server is a host away. On other machines nothing answers, and the wait is for nothing.
_TIMEOUT_SECONDS = 2.0
_LARGEST_ANSWER = 4096
_UNANSWERED = (OSError, HTTPException, ValueError)


class Watcher(Protocol):
    """One place that notices come from."""

    @property
    def place(self) -> str:
        """Its name, with the key that chose it."""

    def notice(self) -> str | None:
        """Who says that this node will go away, and why; None as long as nobody does.

        Raises:
            OSError: the place cannot be asked.
            HTTPException: its answer is not HTTP.
            ValueError: its answer makes no sense; the message says of the place what it does.
        """


class _Answer(NamedTuple):
    status: int
    headers: Message
    text: str


class _MetadataServer:
    """Asked directly, whatever proxies the environment names: they cannot reach an address of this link.

    Args:
        endpoint: its URL; null is the link-local address, which both clouds use and no name server is needed for.
    """

    def __init__(self, endpoint: str | None) -> None:
        self.endpoint = endpoint or _LINK_LOCAL
        url = urlsplit(self.endpoint)
        self._host, self._port, self._prefix = url.hostname or "", url.port or 80, url.path.rstrip("/")

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> _Answer:
        connection = HTTPConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, self._prefix + path, headers=dict(headers))
            response = connection.getresponse()
            return _Answer(response.status, response.headers, response.read(_LARGEST_ANSWER).decode(errors="replace"))
        finally:
            connection.close()


class AwsSpot:
    """AWS takes a spot instance back: two minutes' notice in its metadata (IMDSv2).

    A rebalance recommendation says that this may come, not that it does, and is no notice.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html

    Args:
        endpoint: URL of the metadata server; null is AWS's own.
    """

    _TOKEN_SECONDS = 21600

    def __init__(self, endpoint: str | None = None) -> None:
        self._server = _MetadataServer(endpoint)
        self._token: str | None = None
        self.place = f"preemption.provider=aws: the metadata server {self._server.endpoint}"

    def notice(self) -> str | None:
        answer = self._ask()
        if answer.status == 401:  # the token is not valid any more
            self._token = None
            answer = self._ask()
        if answer.status == 404:
            return None
        _require_ok(answer)
        try:
            announced = json.loads(answer.text)
            return f"notice from AWS: {announced['action']} at {announced['time']}"
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"answers {answer.text[:80]!r} instead of an action and its time") from None

    def _ask(self) -> _Answer:
        if self._token is None:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(self._TOKEN_SECONDS)}
            token = self._server.ask("PUT", "/latest/api/token", lifetime)
            _require_ok(token)
            if not (token.text.isascii() and token.text.isprintable()):
                raise ValueError(f"answers {token.text[:80]!r} instead of a token")
            self._token = token.text
        token_header = {"X-aws-ec2-metadata-token": self._token}
        return self._server.ask("GET", "/latest/meta-data/spot/instance-action", token_header)


class GoogleCloud:
    """Google Cloud preempts a machine, or ends it for the maintenance of its host.

    A machine that is moved to another host keeps running: no notice.
    https://cloud.google.com/compute/docs/instances/create-use-preemptible

    Args:
        endpoint: URL of the metadata server; null is Google Cloud's own.
    """

    _FLAVOR = ("Metadata-Flavor", "Google")

    def __init__(self, endpoint: str | None = None) -> None:
        self._server = _MetadataServer(endpoint)
        self.place = f"preemption.provider=gcp: the metadata server {self._server.endpoint}"

    def notice(self) -> str | None:
        if self._value("preempted") == "TRUE":
            return "notice from Google Cloud: this instance is being preempted"
        if self._value("maintenance-event").startswith("TERMINATE"):
            return "notice from Google Cloud: this instance ends for the maintenance of its host"
        return None

    def _value(self, name: str) -> str:
        answer = self._server.ask("GET", f"/computeMetadata/v1/instance/{name}", dict([self._FLAVOR]))
        _require_ok(answer)
        header, flavor = self._FLAVOR
        if answer.headers.get(header) != flavor:
            raise ValueError(f"answers without {header}: {flavor}, so it is another server")
        return answer.text.strip()


class SlurmEnd:
    """The time limit of a Slurm job comes near.

    Args:
        end: when the job ends, in seconds since 1970, as ``SLURM_JOB_END_TIME`` says; None if nothing says so.
        lead_seconds: how long before that the notice comes.
        clock: gives the time of day.
    """

    place = "preemption.provider=slurm: SLURM_JOB_END_TIME"

    def __init__(self, end: str | None, lead_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._end = end
        self._lead_seconds = lead_seconds
        self._clock = clock

    def notice(self) -> str | None:
        if self._end is None:
            raise ValueError("is not set; Slurm sets it in a job that has a time limit, since version 22.05")
        if not self._end.isdecimal():
            raise ValueError(f"is {self._end!r} instead of seconds since 1970")
        end = int(self._end)
        if (left := end - self._clock()) <= 0:
            raise ValueError(f"is {self._end}, which has passed while the job goes on, so its limit was moved")
        if left > self._lead_seconds:
            return None
        return f"notice from Slurm: the job ends at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(end))}"


class FileAppears:
    """A file that whoever takes the node away makes; it is a notice as long as it is there.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.place = f"preemption.file={path}"

    def notice(self) -> str | None:
        return f"notice from the file {self._path}, which is there" if self._path.exists() else None


def watchers_of(config: PreemptionConfig) -> list[Watcher]:
    """The watchers that are asked for; those that answer at once come first."""
    watchers: list[Watcher] = []
    if config.file is not None:
        watchers.append(FileAppears(config.file))
    if config.provider == "slurm":
        watchers.append(SlurmEnd(os.environ.get("SLURM_JOB_END_TIME"), config.lead_seconds))
    if config.provider == "aws":
        watchers.append(AwsSpot(config.endpoint))
    if config.provider == "gcp":
        watchers.append(GoogleCloud(config.endpoint))
    return watchers


@contextlib.contextmanager
def watching(watchers: Sequence[Watcher], poll_interval: float, stop: Callable[[str], None]) -> Iterator[None]:
    """While it lasts, ``stop`` is called with the first notice that comes.

    Args:
        watchers: where to look.
        poll_interval: seconds between two looks.
        stop: takes the notice, in a thread of its own.
    """
    ended = threading.Event()
    if watchers:
        arguments = (watchers, poll_interval, stop, ended)
        threading.Thread(target=_watch, args=arguments, name="preemption", daemon=True).start()
    try:
        yield
    finally:
        ended.set()  # and no join: a server may be slow to answer


def _watch(
    watchers: Sequence[Watcher], poll_interval: float, stop: Callable[[str], None], ended: threading.Event
) -> None:
    unanswered: set[Watcher] = set()
    while not ended.is_set():
        for watcher in watchers:
            try:
                notice = watcher.notice()
            except _UNANSWERED as error:
                if watcher not in unanswered and not ended.is_set():
                    unanswered.add(watcher)
                    log.info("%s %s; it is asked again every %g s", watcher.place, _said(error), poll_interval)
                continue
            if notice is not None and not ended.is_set():
                stop(notice)
                return
        ended.wait(poll_interval)


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, ValueError) else f"gives no answer ({type(error).__name__}: {error})"


def _require_ok(answer: _Answer) -> None:
    if answer.status != 200:
        raise ValueError(f"answers with status {answer.status}")
