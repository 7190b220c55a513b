"""Clocks that are wrong: the page goes on, nothing is lost, and exact times stay as they were."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hub_requests import RANK_0, SECOND, START, Clock, histogram, logs, metrics, number, only, rank, shown
from hubs import ask, command
from programs import environment, write
from servers import find
from tachograph.hub.hub import Hub

HOUR = 3600 * SECOND
LARGEST = 2**64 - 1

# libfaketime 0.9.10 breaks clock_nanosleep: from Python 3.11 on time.sleep raises EINVAL there, now and then. A
# collection sleeps only where it takes longer than usual, which on a busy machine the last one did.
PROGRAM = """
    import select, sys, time

    time.sleep = lambda seconds: select.select([], [], [], seconds)

    import tachograph

    with tachograph.start() as pipeline:
        for i in range(1, 10_000):
            tachograph.put_metric("level", float(i))
            tachograph.put_metric("step.duration.ms", 1.0)
            print(i, flush=True)
            time.sleep(0.05)
            if sys.argv[1] and open(sys.argv[1]).read() == "end":
                break
        pipeline.flush(20)  # the end itself waits half a second for a hub that does not answer, which is little there
"""


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


def test_after_an_hour_ahead_the_page_goes_on(tmp_path: Path, clock: Clock) -> None:
    """What is ahead is shown at once and counted; right points after it count from the first on, each kind."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for turn, ahead in enumerate((0, HOUR, HOUR, 0, 0), 1):
        clock.forward(1)
        now = clock() + ahead
        sent = [
            number("level", turn, time=now),
            number("size", turn, kind="updown", time=now),
            number("steps", turn, kind="counter", time=now, start=START),
            number("sent", 1, kind="counter", delta=True, start=now - SECOND, time=now),
            histogram("wait", [turn, 0, 0], time=now, start=START),
            histogram("read", [1, 0, 0], delta=True, time=now, start=now - SECOND),
        ]
        for _ in range(2):  # and what is sent again counts once
            hub.receive_metrics(metrics(rank(0), *sent))
        page = hub.page()[1]
        names = ("level", "size", "steps_total", "sent_total", "wait_seconds_count", "read_seconds_count")
        assert {name: only(page, name) for name in names} == dict.fromkeys(names, turn)
    assert only(page, "tachograph_hub_points_ahead_total") == 24
    clock.now = START + HOUR + 2 * SECOND  # when it is the hour that the clock said, its deltas are not taken for those
    again = number("sent", 1, kind="counter", delta=True, start=clock() - SECOND, time=clock())
    hub.receive_metrics(metrics(rank(0), again))
    assert only(hub.page()[1], "sent_total") == 6
    hub.close()


def test_after_an_hour_behind_the_page_goes_on(tmp_path: Path, clock: Clock) -> None:
    """A clock that is set back does not freeze a gauge, and loses no count."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for turn, behind in enumerate((0, 0, HOUR, HOUR, HOUR), 1):
        clock.forward(1)
        now = clock() - behind
        sent = [
            number("level", turn, time=now),
            number("steps", turn, kind="counter", time=now, start=START - 2 * HOUR),
            histogram("wait", [turn, 0, 0], time=now, start=START - 2 * HOUR),
            number("sent", 1, kind="counter", delta=True, start=now - SECOND, time=now),
        ]
        hub.receive_metrics(metrics(rank(0), *sent))
        page = hub.page()[1]
        assert only(page, "steps_total") == only(page, "wait_seconds_count") == only(page, "sent_total") == turn
    assert only(page, "level") == 5
    hub.close()


def test_what_is_late_stays_late(tmp_path: Path, clock: Clock) -> None:
    """Old values that come all at once, as out of a queue, do not replace the newest one."""
    hub = Hub(tmp_path, run="run", clock=clock)
    clock.forward(3600)
    hub.receive_metrics(metrics(rank(0), number("level", 100, time=clock())))
    for second in range(600):
        clock.forward(0.01)
        hub.receive_metrics(metrics(rank(0), number("level", second, time=START + second * SECOND)))
    assert only(hub.page()[1], "level") == 100
    hub.close()


@pytest.mark.parametrize("at", [LARGEST, 2**63, 2**63 - 1])
def test_the_last_nanosecond_harms_nobody(tmp_path: Path, clock: Clock, at: int) -> None:
    """A point at the end of time is shown and kept, the next one counts, and a hub that begins anew goes on."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for turn, (time_unix_nano, start) in enumerate(
        ((at, at), (at, START), (START + SECOND, START), (START - SECOND, 0)), 1
    ):
        sent = [
            number("level", turn, time=min(time_unix_nano, at)),
            number("sent", 1, kind="counter", delta=True, start=start, time=time_unix_nano),
        ]
        clock.forward(20)
        hub.receive_metrics(metrics(rank(0), *sent))
        hub.receive_logs(logs(rank(0), ("e", {"turn": turn}), first=turn))
        hub.tick()
    assert only(hub.page()[1], "sent_total") == 4
    clock.forward(1)
    hub.receive_metrics(metrics(rank(0), number("level", 9, time=clock())))
    assert only(hub.page()[1], "level") == 9
    hub.close()
    again = Hub(tmp_path, run="run", clock=clock)
    assert only(again.page()[1], "level") == 9
    again.close()


def test_the_time_of_an_event_is_never_changed(tmp_path: Path, clock: Clock) -> None:
    """Exact points and events keep the time that their sender gave them, however far ahead."""
    hub = Hub(tmp_path, run="run", clock=clock)
    request = logs(rank(0), ("e", {}))
    request.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = START + HOUR
    hub.receive_logs(request)
    (event,) = hub.events("run").read()
    assert event.time_unix_nano == START + HOUR
    hub.close()


def test_a_start_by_a_clock_that_is_ahead_is_not_the_last_one(tmp_path: Path, clock: Clock) -> None:
    """A process that is started again after its clock was set right takes the place of the one before."""
    hub = Hub(tmp_path, run="run", clock=clock)
    for pid, stream, said in ((7, "a", START + HOUR), (8, "b", START + 2 * SECOND)):
        clock.forward(1)
        request = logs({**RANK_0, "process.pid": pid}, ("tachograph.process.start", {}), stream=stream)
        request.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = said
        hub.receive_logs(request)
    assert [each["pid"] for each in hub.summary()["lost"]] == [7]
    hub.close()


@pytest.mark.process
@pytest.mark.timeout(240)
def test_a_real_clock_that_steps(tmp_path: Path) -> None:
    """A process whose clock goes an hour ahead, back, and an hour behind is followed on the page, to the last count."""
    total, page = stepped(tmp_path)
    assert sum(shown(page, "step_duration_milliseconds_count").values()) == total
    assert only(page, "level") == total
    assert sum(shown(page, "tachograph_hub_points_ahead_total").values()) > 0


def stepped(tmp_path: Path) -> tuple[int, bytes]:
    """Run a process whose clock steps beside a hub; return how often it has recorded, and the hub's last page."""
    preload = subprocess.run(
        [find("faketime"), "-f", "+0", "sh", "-c", "echo $LD_PRELOAD"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout.strip()
    offset, ending = tmp_path / "offset", tmp_path / "ending"
    offset.write_text("+0")
    ending.write_text("")
    with command(tmp_path, "--quiet") as hub:
        env = environment(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=hub.url,
            OTEL_METRIC_EXPORT_INTERVAL="300",
            LD_PRELOAD=preload,
            FAKETIME_TIMESTAMP_FILE=str(offset),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )
        line = [sys.executable, write(tmp_path, PROGRAM), ending]
        with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                for step in ("+0", "+3600", "+0", "-3600", "+0"):
                    part = offset.with_suffix(".new")
                    part.write_text(step)
                    part.replace(offset)
                    before = level(hub.url)
                    assert eventually(lambda before=before: level(hub.url) > before + 20), step  # type: ignore[misc]
                ending.write_text("end")
                said, _ = process.communicate(timeout=60)
                assert process.returncode == 0
            finally:
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
        total = int(said.split()[-1])
        page = ask(hub.url, "/metrics").body
        hub.process.send_signal(signal.SIGTERM)
        assert hub.end() == 0
    return total, page


def level(url: str) -> float:
    """Return what a hub shows of the gauge; 0 where there is none yet."""
    return sum(shown(ask(url, "/metrics").body, "level").values())


def eventually(condition: Callable[[], bool]) -> bool:
    """Tell whether something comes true within twenty seconds."""
    deadline = time.monotonic() + 20
    for _ in itertools.count():
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return False
