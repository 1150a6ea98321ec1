"""In CI a skipped test is a failed one: what it needs has to be installed there."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

FORBID_SKIPS = "ELASTIC_HARNESS_FORBID_SKIPS"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and FORBID_SKIPS in os.environ:
        report.outcome = "failed"
        report.longrepr = f"skipped, which {FORBID_SKIPS} forbids: {report.longrepr}"
    return report
