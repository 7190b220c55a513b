"""Our log: trouble that comes back is logged once."""

from __future__ import annotations

import threading

import pytest

from tachograph.recording.log import LogOnce


def test_each_kind_of_trouble_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first message of each kind is logged, with what it says then; a further one is not."""
    log_once = LogOnce()
    for number in range(3):
        log_once("disk", "full: %s", number)
        log_once("net", "away: %s", number)
    assert [record.getMessage() for record in caplog.records] == ["full: 0", "away: 0"]


def test_threads_that_fail_at_once_log_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of many threads that meet the same trouble at the same moment, one says so."""
    log_once, start = LogOnce(), threading.Barrier(8)

    def fail() -> None:
        start.wait(10)
        log_once("disk", "full")

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(caplog.records) == 1


def test_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A kind whose names never repeat fills neither the memory nor the log."""
    log_once = LogOnce()
    for number in range(2000):
        log_once(number, "broken: %s", number)
    assert len(caplog.records) == 1000
