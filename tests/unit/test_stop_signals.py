from __future__ import annotations

import os
import signal

import pytest

from elastic_harness.errors import Stopped
from elastic_harness.stop_signals import STOP_SIGNALS, StopSignals


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signals_when_one_arrives_then_it_is_noted_and_wakes_the_reader(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.reader.poll(5)
        assert stop.received == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == number, "the first one counts"
    assert signal.getsignal(number) is before


def test_stop_signals_when_sighup_was_ignored_then_it_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.reader.poll(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGUSR2, 143)],
)
def test_stopped_when_raised_then_has_the_documented_exit_code(number: int, code: int) -> None:
    stopped = Stopped(number)
    assert stopped.exit_code == stopped.code == code
