"""The exporter for InfluxDB against real servers: what arrives, what waits, what is counted."""

from __future__ import annotations

import contextlib
import gzip
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import programs
from influx_points import START, dropped, event, events, exporter, feed, lines_in, spool_files
from places import TESTS
from receivers import receiving, silent
from servers import exported_series, free_port, influxdb1, influxql, victoria_metrics, wait_until
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.registry import Registry

_NUMBERS = [0.0, -0.0, 0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -2.5e-7, 123456789.123456789, 1e16]


def count(base: str, field: str = "loss") -> int:
    """Return how many values of a field InfluxDB holds."""
    series = influxql(base, f'SELECT COUNT("{field}") FROM "train"')  # noqa: S608 - a name of our own
    return int(series[0]["values"][0][1]) if series else 0


def test_every_field_is_equal_in_influxdb(tmp_path: Path) -> None:
    """Ints, floats and strings, their tags and their nanoseconds read back from InfluxDB 1 as they were logged."""
    texts = ["plain", 'q"uo"te', "back\\slash\\", "line\nend", "é ☃", "a,b=c d"]
    fields = [{"f": number, "i": index - 4} for index, number in enumerate(_NUMBERS)]
    told: list[dict[str, Any]] = [*fields, *({"s": text} for text in texts), {"i": 2**63 - 1}, {"i": -(2**63)}]
    tags = {"step": "4", "a b": "c,d=e", "snow": "☃"}
    registry = Registry()
    with influxdb1(tmp_path / "data") as base:
        out = exporter(base, tmp_path, registry)
        feed(out, [event(number, each, tags) for number, each in enumerate(told)])
        assert out.flush(20)
        out.close(5)
        (series,) = influxql(base, 'SELECT "f", "i", "s", "step", "a b", "snow" FROM "train"')
    read = [dict(zip(series["columns"], row, strict=True)) for row in series["values"]]
    assert [row.pop("time") for row in read] == [START + number for number in range(len(told))]
    assert [{key: value for key, value in row.items() if value is not None} for row in read] == [
        {**each, **tags} for each in told
    ]
    assert dropped(registry) == {}
    assert spool_files(tmp_path) == []


def test_every_number_is_equal_in_victoria_metrics(tmp_path: Path) -> None:
    """Each numeric field is one sample of ``<measurement>_<field>`` in VictoriaMetrics; NaN is counted."""
    numbers = [0.1, 1 / 3, -2.5e-7, 123456.75, 42]
    registry = Registry()
    with victoria_metrics(tmp_path / "data") as base:
        out = exporter(base, tmp_path, registry)
        # A sample a millisecond is what it keeps.
        told = [event(number * 1_000_000, {"f": value, "bad": math.nan}) for number, value in enumerate(numbers)]
        feed(out, told)
        assert out.flush(20)
        out.close(5)
        wait_until(lambda: exported_series(base))
        (series,) = exported_series(base)
    assert series["metric"] == {"__name__": "train_f", "role": "miner", "uid": "7"}
    assert series["values"] == pytest.approx(numbers, rel=1e-11)  # it keeps twelve digits
    assert series["timestamps"] == [START // 1_000_000 + number for number in range(len(numbers))]
    assert dropped(registry) == {"nonfinite": len(numbers)}


@pytest.fixture
def unmeasured(untraced: None) -> Iterator[None]:
    """No coverage in the threads that the test starts, either: it makes them ten times as slow."""
    assert untraced is None
    tracer = threading.gettrace()
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(tracer)  # type: ignore[arg-type]


def test_an_outage_loses_and_doubles_nothing(tmp_path: Path, unmeasured: None) -> None:
    """A server that is stopped in the middle of 100,000 points and started again has each of them, once."""
    assert unmeasured is None
    port, total = free_port(), 100_000
    registry = Registry()
    with influxdb1(tmp_path / "data", port) as base:
        out = exporter(base, tmp_path, registry, batch_size=5000)
        feed(out, events(0, 40_000))
        wait_until(lambda: count(base) > 0)
    feed(out, events(40_000, 60_000))
    wait_until(lambda: spool_files(tmp_path))
    with influxdb1(tmp_path / "data", port) as base:
        feed(out, events(60_000, total))
        assert out.flush(120)
        out.close(5)
        assert count(base) == count(base, "s") == total
    assert dropped(registry) == {}
    assert spool_files(tmp_path) == []


def test_a_server_that_never_comes_back_costs_what_is_allowed(tmp_path: Path) -> None:
    """Memory and disk stay within their bounds, and what was dropped and what waits are together what was logged."""
    registry, total = Registry(), 20_000
    out = exporter(f"http://127.0.0.1:{free_port()}", tmp_path, registry, queue_size=3000, spool_limit=1_000_000)
    for start in range(0, total, 2000):
        feed(out, events(start, start + 2000))
        time.sleep(0.2)
        assert out.waiting <= 3000
    out.close(1)
    assert sum(file.stat().st_size for file in spool_files(tmp_path)) <= 1_000_000
    waits = len(lines_in(spool_files(tmp_path)))
    lost = dropped(registry)
    assert set(lost) <= {"queue_full", "spool_full"}
    assert waits > 0
    assert sum(lost.values()) + waits == total


def test_without_a_disk_the_rest_is_counted(tmp_path: Path) -> None:
    """With no share of the disk, what a dead server did not take is dropped, and every point of it counted."""
    registry = Registry()
    out = exporter(f"http://127.0.0.1:{free_port()}", tmp_path, registry, queue_size=500, spool_limit=0)
    feed(out, events(0, 3000))
    out.close(0.5)
    lost = dropped(registry)
    assert sum(lost.values()) == 3000
    assert set(lost) == {"queue_full", "shutdown"}
    assert spool_files(tmp_path) == []


def test_a_bad_point_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A field of another type than before is rejected, counted and said once; the points beside it arrive."""
    registry = Registry()
    told = [event(number, {"loss": "text" if number in (7, 30) else 0.5}) for number in range(1, 51)]
    with influxdb1(tmp_path / "data") as base:
        out = exporter(base, tmp_path, registry)
        feed(out, [event(0, {"loss": 0.5})])
        assert out.flush(20)
        feed(out, told)
        assert not out.flush(20)
        out.close(5)
        assert count(base) == 49
    assert dropped(registry) == {"rejected": 2}
    assert sum("rejected" in record.message for record in caplog.records) == 1


def test_lines_that_it_cannot_read_are_found(tmp_path: Path) -> None:
    """A server that refuses a whole body because of one line gets the others without it."""
    registry = Registry()
    refuses: list[tuple[int, dict[str, str], bytes]] = [(400, {}, b'{"error":"unable to parse"}')]
    # 20 lines, 10 of them, 5, 2 and then one are refused; the second of the two, 3, 5 and 10 are not.
    with receiving(*refuses * 5) as there:
        out = exporter(there.url.removesuffix("/v1/metrics"), tmp_path, registry, batch_size=20)
        feed(out, [event(number, {"n": number}) for number in range(20)])
        out.close(10)
        bodies = [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for _, _, body in there.requests]
    assert [len(body.splitlines()) for body in bodies] == [20, 10, 5, 2, 1, 1, 3, 5, 10]
    assert dropped(registry) == {"rejected": 1}


def test_a_database_that_comes_later_gets_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the database is missing one line says what to do, and the points wait until it is there."""
    registry = Registry()
    with influxdb1(tmp_path / "data", database=None) as base:
        out = exporter(base, tmp_path, registry)
        feed(out, events(0, 10))
        wait_until(lambda: "CREATE DATABASE" in caplog.text)
        influxql(base, 'CREATE DATABASE "tplr"')
        assert out.flush(20)
        out.close(5)
        assert count(base) == 10
    assert sum("CREATE DATABASE" in record.message for record in caplog.records) == 1
    assert dropped(registry) == {}


def test_a_wrong_token_is_said_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the token is not taken, a line names the variable and not its value; the points wait on the disk."""
    caplog.set_level(logging.DEBUG)
    registry = Registry()
    with influxdb1(tmp_path / "data") as base:
        influxql(base, "CREATE USER somebody WITH PASSWORD 'else' WITH ALL PRIVILEGES")
    with influxdb1(tmp_path / "data", database=None, auth=True) as base:
        out = exporter(base, tmp_path, registry)
        feed(out, events(0, 10))
        wait_until(lambda: "INFLUXDB_TOKEN" in caplog.text)
        out.close(1)
    assert sum("INFLUXDB_TOKEN" in record.message for record in caplog.records) == 1
    assert "t0k3n" not in caplog.text
    assert dropped(registry) == {}
    assert len(spool_files(tmp_path)) == 1


def test_a_user_and_a_password_are_a_token(tmp_path: Path) -> None:
    """InfluxDB 1 with users takes ``user:password`` as the token."""
    with influxdb1(tmp_path / "data") as base:
        influxql(base, "CREATE USER somebody WITH PASSWORD 'else' WITH ALL PRIVILEGES")
    port = free_port()
    with influxdb1(tmp_path / "data", port, database=None, auth=True) as base:
        out = exporter(base, tmp_path, Registry(), token="somebody:else")  # noqa: S106
        feed(out, events(0, 10))
        assert out.flush(20)
        out.close(5)
    with influxdb1(tmp_path / "data", port) as base:
        assert count(base) == 10


def test_what_the_client_sends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch is one compressed request to the v2 API with org, bucket and token, and one DEBUG line without it."""
    caplog.set_level(logging.DEBUG, logger="tachograph.influxdb")
    with receiving() as server:
        out = exporter(server.url.removesuffix("/v1/metrics"), tmp_path, Registry(), batch_size=100)
        feed(out, events(0, 100))
        assert out.flush(20)
        out.close(5)
    ((path, headers, body),) = server.requests
    assert path == "/api/v2/write?org=tplr&bucket=tplr&precision=ns"
    assert headers["Authorization"] == "Token t0k3n"
    assert len(gzip.decompress(body).splitlines()) == 100
    wait_until(lambda: caplog.records)  # it is written once the points are known to have arrived
    (record,) = caplog.records
    assert record.message.startswith("100 points, ")
    assert record.message.endswith("status 200")


def test_without_a_token_nothing_is_said_about_who_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a token there is no Authorization header, and one warning, be it for a logger or for start()."""
    from tachograph.exporters.influxdb import InfluxDB

    with receiving() as server:
        base = server.url.removesuffix("/v1/metrics")
        for only in (True, False):
            out = InfluxDB(InfluxTarget(base), Registry(), store=tmp_path, flush_interval=0.1, only=only)
            feed(out, [event(0, to=InfluxTarget(base) if only else None)])
            assert out.flush(20)
            out.close(5)
            assert sum("Authorization" in record.message for record in caplog.records) == 1
    assert "Authorization" not in server.requests[0][1]


def test_it_waits_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    """Retry-After is honoured, and the same points are sent again."""
    with receiving((503, {"Retry-After": "1"}, b"busy")) as server:
        out = exporter(server.url.removesuffix("/v1/metrics"), tmp_path, Registry())
        began = time.monotonic()
        feed(out, events(0, 5))
        assert out.flush(20)
        assert time.monotonic() - began >= 1
        out.close(5)
    assert server.requests[0][2] == server.requests[1][2]


def test_writes_are_no_larger_than_asked_for(tmp_path: Path) -> None:
    """No write has more points than the batch size, and several writes at a time deliver everything."""
    with receiving() as server:
        out = exporter(server.url.removesuffix("/v1/metrics"), tmp_path, Registry(), batch_size=150, concurrency=3)
        feed(out, events(0, 2000))
        assert out.flush(20)
        out.close(5)
    lines = [gzip.decompress(body).splitlines() for _, _, body in server.requests]
    assert max(map(len, lines)) <= 150
    assert sorted(line for part in lines for line in part) == sorted(
        f'train,role=miner,uid=7 loss={n / 7!r},n={n}i,s="no {n}" {START + n}'.encode() for n in range(2000)
    )


@pytest.mark.timing
@pytest.mark.parametrize("kind", [pytest.param("refused", marks=pytest.mark.long), "silent"])
def test_the_end_is_quick_and_the_next_process_delivers(tmp_path: Path, kind: str) -> None:
    """With a dead server the end takes a second at most; what was not delivered, the next of its kind delivers."""
    registry = Registry()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(silent()) if kind == "silent" else free_port()
        out = exporter(f"http://127.0.0.1:{port}", tmp_path, registry)
        feed(out, events(0, 500))
        time.sleep(0.3)
        began = time.monotonic()
        out.close(0.5)
        assert time.monotonic() - began < 1.0
    assert dropped(registry) == {}
    (file,) = spool_files(tmp_path)
    assert len(lines_in([file])) == 500
    with influxdb1(tmp_path / "data", port) as base:
        after = exporter(base, tmp_path, registry)
        wait_until(lambda: count(base) == 500)
        after.close(5)
    assert spool_files(tmp_path) == []


def test_what_a_killed_process_left_is_delivered(tmp_path: Path) -> None:
    """Points that waited on the disk when SIGKILL came arrive by the next process of the same destination."""
    port = free_port()
    program = f"""
        import sys, time
        sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from influx_points import events, exporter, feed, lines_in, spool_files
        from tachograph.recording.registry import Registry
        out = exporter("http://127.0.0.1:{port}", Path("."), Registry())
        feed(out, events(0, 300))
        while len(lines_in(spool_files(Path(".")))) < 300:
            time.sleep(0.05)
        print("spooled", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, str(programs.write(tmp_path, program))],
        cwd=tmp_path,
        env=programs.environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spooled\n"
        bystander = exporter(f"http://127.0.0.1:{port}", tmp_path, Registry())
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    bystander.close(0.1)
    registry = Registry()
    with influxdb1(tmp_path / "data", port) as base:
        out = exporter(base, tmp_path, registry)
        wait_until(lambda: count(base) == 300)
        out.close(5)
    assert spool_files(tmp_path) == []
    assert dropped(registry) == {}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # it is what is tested
def test_a_fork_doubles_nothing(tmp_path: Path, untraced: None) -> None:
    """A forked child delivers nothing of its parent's, and can record for itself."""
    assert untraced is None
    with influxdb1(tmp_path / "data") as base:
        out = exporter(base, tmp_path, Registry(), flush_interval=30.0)
        feed(out, events(0, 10))
        child = os.fork()
        if not child:
            out.reset_in_child()
            feed(out, events(10, 15))
            os._exit(0 if out.flush(20) and count(base) == 5 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert out.flush(20)
        out.close(5)
        assert count(base) == 15


def test_random_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """Back-off draws nothing from the program's own random state."""
    random.seed(1)
    before = random.getstate()
    out = exporter(f"http://127.0.0.1:{free_port()}", tmp_path, Registry())
    feed(out, events(0, 5))
    out.flush(0.3)
    out.close(0.1)
    assert random.getstate() == before


def test_a_loggers_point_goes_where_it_belongs(tmp_path: Path) -> None:
    """A logger's exporter takes the points that name its target; that of start() all others."""
    mine, other = InfluxTarget("http://127.0.0.1:1"), InfluxTarget("http://127.0.0.1:2")
    told = [event(0, {"n": 0}, to=mine), event(1, {"n": 1}, to=other), event(2, {"n": 2})]
    with receiving() as server:
        base = server.url.removesuffix("/v1/metrics")
        here = InfluxTarget(base, token="t0k3n")  # noqa: S106
        out = exporter(base, tmp_path, Registry(), only=True)
        everything = exporter(base, tmp_path, Registry())
        mark = [event(3, {"n": 3}, to=here)]
        feed(out, told + mark)
        feed(everything, told + mark)
        assert out.flush(20)
        assert everything.flush(20)
        out.close(5)
        everything.close(5)
    ours, theirs = sorted((body.splitlines() for _, _, body in server.requests), key=len)
    assert [line.split()[1] for line in ours] == [b"n=3i"]
    assert [line.split()[1] for line in theirs] == [b"n=0i", b"n=1i", b"n=2i"]
