from __future__ import annotations

import math
import os
import signal
import threading

import pytest

from elastic_harness.errors import Stopped
from elastic_harness.stop_signals import STOP_SIGNALS, StopSignals


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signals_when_one_arrives_then_it_is_noted_and_wakes_the_reader(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.first is None
        os.kill(os.getpid(), number)
        assert stop.reader.poll(5)
        assert stop.first is not None
        assert stop.first.number == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.first.number == number, "the first one counts"
    assert signal.getsignal(number) is before


def test_stop_signals_when_sighup_was_ignored_then_it_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.reader.poll(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_stop_signals_when_a_notice_comes_then_it_counts_as_sigterm_also_where_that_is_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            thread = threading.Thread(target=stop.give_notice, args=("notice from AWS",))
            thread.start()
            thread.join()
            assert stop.reader.poll(5)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.first is not None
            assert stop.first[:2] == (signal.SIGTERM, "notice from AWS")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_stop_signals_when_stopped_then_only_the_grace_is_left() -> None:
    stop = StopSignals(grace_seconds=100)
    assert stop.seconds_left() == math.inf
    stop.give_notice("notice")
    assert 60 < stop.seconds_left() < 100


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGUSR2, 143)],
)
def test_stopped_when_raised_then_has_the_documented_exit_code(number: int, code: int) -> None:
    stopped = Stopped(number)
    assert stopped.exit_code == stopped.code == code
