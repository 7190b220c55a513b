"""What no server does: clients that do not load, disks that fail, bugs. Nothing is lost, and each is said once."""

from __future__ import annotations

import errno
import fcntl
import gzip
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from influx_points import STREAM, dropped, event, events, exporter, feed, lines_in, spool_files
from receivers import Receiver, receiving
from servers import free_port, wait_until
from tachograph.exporters import spool
from tachograph.exporters.influxdb import InfluxDB
from tachograph.exporters.influxdb.server import Server
from tachograph.exporters.spool_format import Framed, Position, SpoolRecord
from tachograph.recording.journal import LogEvent
from tachograph.recording.registry import Registry


def base(server: Receiver) -> str:
    """Return the receiver's address."""
    return server.url.removesuffix("/v1/metrics")


def received(server: Receiver) -> list[str]:
    """Return the lines that arrived."""
    bodies = [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for _, _, body in server.requests]
    return [line for body in bodies for line in body.decode().splitlines()]


def arrived(server: Receiver) -> list[int]:
    """Return the numbers of the points that arrived, each once."""
    return sorted({int(line.split("n=")[1].split("i")[0]) for line in received(server)})


def waits(folder: Path) -> list[int]:
    """Return the numbers of the points that wait on the disk."""
    return [int(line.split("n=")[1].split("i")[0]) for line in lines_in(spool_files(folder))]


def under_way(out: InfluxDB) -> int:
    """Return how many batches are on their way."""
    return len(out._queue._under_way)


def failing(times: int, error: Exception, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises so often before it does what it should."""
    left = [error] * times

    def call(*arguments: Any, **more: Any) -> Any:
        if left:
            raise left.pop()
        return real(*arguments, **more)

    return call


def test_a_client_that_does_not_load_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a client whose import raises everything waits, on the disk and in memory, until it loads."""
    registry = Registry()
    with receiving() as there:
        _break_the_client(tmp_path / "broken", monkeypatch)
        dead = exporter(base(there), tmp_path, registry)
        feed(dead, events(0, 40))
        wait_until(lambda: "a broken dependency" in caplog.text)
        dead.close(0.2)
        assert waits(tmp_path) == list(range(40))
        before = [file.stat().st_size for file in spool_files(tmp_path)]
        out = exporter(base(there), tmp_path, registry, look_again=0.1)
        for start in range(40, 100, 20):
            feed(out, events(start, start + 20))
            time.sleep(0.3)
        assert [file.stat().st_size for file in spool_files(tmp_path)][: len(before)] == before
        assert under_way(out) == 0
        monkeypatch.undo()
        assert out.flush(20)
        out.close(5)
        assert arrived(there) == list(range(100))
    assert dropped(registry) == {}
    assert spool_files(tmp_path) == []
    assert sum("a broken dependency" in record.message for record in caplog.records) == 2  # by each of the two


def _break_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next import of InfluxDB's client find a broken installation, until the patch is undone."""
    folder.mkdir()
    (folder / "influxdb_client.py").write_text("raise ImportError('a broken dependency')\n", encoding="utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "influxdb_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_bug_in_a_delivery_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, concurrency: int) -> None:
    """Where sending raises an error of an unknown kind, the points are sent again."""
    surprises = [RuntimeError("surprise")] * 4

    class Surprising(Server):
        def write(self, body: bytes, timeout: float) -> int:
            if surprises:
                raise surprises.pop()
            return super().write(body, timeout)

    registry, more = Registry(), {"make_server": Surprising}
    with receiving() as there:
        out = exporter(base(there), tmp_path, registry, concurrency=concurrency, batch_size=50, **more)
        feed(out, events(0, 200))
        wait_until(lambda: out.flush(1) or None)
        assert under_way(out) == 0
        out.close(5)
        assert arrived(there) == list(range(200))
    assert dropped(registry) == {}
    assert surprises == []
    assert sum("surprise" in record.message for record in caplog.records) == 1


def failing_disk(fails: Callable[[], bool], error: OSError) -> Callable[[], Framed]:
    """Return a format of spools whose reading fails, as a disk may make it."""

    class Failing(Framed):
        def read(self, file: int, place: Position, size: int) -> SpoolRecord | None:
            if fails():
                raise error
            return super().read(file, place, size)

    return Failing


def test_a_file_that_cannot_be_read_for_a_while_is_not_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the disk fails in the middle of a file, what was read before comes again, and all of it arrives."""
    left = exporter(f"http://127.0.0.1:{free_port()}", tmp_path, Registry())
    feed(left, events(0, 100))
    left.close(0.1)
    calls = itertools.count(1)
    failing_format = failing_disk(lambda: next(calls) in (3, 6), OSError(errno.EIO, "Input/output error"))

    def make_spool(*arguments: Any, formats: Mapping[str, Any], **more: Any) -> spool.Spool:
        return spool.Spool(*arguments, formats={**formats, spool.SUFFIX: failing_format}, **more)

    registry = Registry()
    with receiving() as there:
        _move(tmp_path, base(there))
        out = exporter(base(there), tmp_path, registry, make_spool=make_spool)
        wait_until(lambda: len(arrived(there)) == 100)
        wait_until(lambda: not spool_files(tmp_path))
        out.close(5)
        assert arrived(there) == list(range(100))
    assert dropped(registry) == {}
    assert sum("Input/output error" in record.message for record in caplog.records) == 1


def _move(folder: Path, to: str) -> None:
    """Let the only destination's files be those of another."""
    (there,) = (folder / "spool").iterdir()
    there.rename(there.with_name(f"influxdb-{to.removeprefix('http://').replace(':', '%3A')}-tplr-tplr"))


def test_a_file_that_cannot_be_read_lets_others_pass(tmp_path: Path) -> None:
    """A file whose reading fails comes after the others, and is tried again."""
    for text in (b"first", b"second"):
        left = spool.Spool(tmp_path, 2**20)
        left.append(SpoolRecord("lines", text, 1))
        left.close()
    is_away = [True]
    stale = failing_disk(lambda: is_away[0], OSError(errno.ESTALE, "Stale file handle"))
    by_age = iter([stale(), Framed()])
    made = spool.Spool(tmp_path, 2**20, formats={spool.SUFFIX: partial(next, by_age)})
    assert made.adopt() == 2
    with pytest.raises(OSError, match="Stale"):
        made.take(None)
    made.give_back()
    (record,), _, _ = made.take(None)
    assert record.payload == b"second"
    made.advance(record.size, 0)
    made.end()
    with pytest.raises(OSError, match="Stale"):
        made.take(None)
    made.give_back()
    is_away[0] = False
    assert [record.payload for record in made.take(None)[0]] == [b"first"]


def test_a_file_that_is_overwritten_costs_what_was_there_and_is_counted(tmp_path: Path) -> None:
    """What waits on the disk and is overwritten there is counted at the end, to the point; all else arrives later."""
    registry, nowhere = Registry(), f"http://127.0.0.1:{free_port()}"
    out = exporter(nowhere, tmp_path, registry, first_back_off=0.01)
    for start in range(0, 400, 8):
        feed(out, events(start, start + 8))
        out.flush(0.02)
    wait_until(lambda: len(waits(tmp_path)) == 400)
    (path,) = spool_files(tmp_path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(range(256)) * 20)
    out.close(0.2)
    left = waits(tmp_path)
    assert 200 < len(left) < 400
    assert dropped(registry) == {"damaged": 400 - len(left)}
    later = Registry()
    with receiving() as there:
        _move(tmp_path, base(there))
        out = exporter(base(there), tmp_path, later)
        wait_until(lambda: not spool_files(tmp_path))
        out.close(5)
        assert arrived(there) == left
    assert dropped(later) == {}


def test_a_disk_that_fills_between_lines_doubles_nothing(tmp_path: Path) -> None:
    """Of what is put on the disk at once, that which is there leaves memory, and only that stays which is not."""
    calls = itertools.count(1)

    class Full(spool.Spool):
        def append(self, record: SpoolRecord) -> None:
            if next(calls) in (2, 5):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().append(record)

    registry, nowhere = Registry(), f"http://127.0.0.1:{free_port()}"
    out = exporter(nowhere, tmp_path, registry, first_back_off=0.01, disk_again=0.2, make_spool=Full)
    for start in range(0, 120, 8):
        feed(out, events(start, start + 8))
    wait_until(lambda: len(waits(tmp_path)) == 120)
    out.close(0.2)
    assert next(calls) > 6
    assert waits(tmp_path) == list(range(120))
    assert dropped(registry) == {}


def test_every_point_says_who_recorded_it(tmp_path: Path) -> None:
    """The resource of a point is that of its own batch: sent at once, in part sent again, or from the disk."""
    partly = json.dumps({"error": "partial write: field type conflict dropped=1"}).encode()
    for answers in (
        [],
        [(503, {}, b"busy")],
        [(400, {}, b'{"error":"unable to parse"}'), (204, {}, b""), (503, {}, b"")],
    ):
        with receiving(*answers, (400, {}, partly)) as there:
            out = exporter(base(there), tmp_path, Registry(), flush_interval=0.3)
            for rank in range(4):
                feed(out, [_metric(rank, at) for at in range(40)], {"dl.rank": rank})
            out.flush(20)
            out.close(5)
            assert _ranks(there) == set(range(4))
    port = free_port()
    out = exporter(f"http://127.0.0.1:{port}", tmp_path, Registry(), first_back_off=0.01)
    for rank in range(2):
        feed(out, [_metric(rank, at) for at in range(40)], {"dl.rank": rank})
    wait_until(lambda: len(lines_in(spool_files(tmp_path))) == 80)
    for rank in range(2, 4):
        feed(out, [_metric(rank, at) for at in range(40)], {"dl.rank": rank})
    out.close(0.1)
    told = [_rank(line) for line in lines_in(spool_files(tmp_path))]
    assert sorted(told) == sorted(rank for rank in range(4) for _ in range(40))


def _metric(rank: int, at: int) -> LogEvent:
    attributes = {"metric": "loss", "group": "g", "x": at, "value": 0.5, "rank": rank}
    return LogEvent("tachograph.metric", at + 1, at + 1, attributes, at, 0, 0, 0, STREAM)


def _rank(line: str) -> int:
    tags, fields, _ = line.split()
    assert int(tags.rpartition("=")[2]) == int(fields.rpartition("=")[2].rstrip("i")), line
    return int(tags.rpartition("=")[2])


def _ranks(there: Receiver) -> set[int]:
    return {_rank(line) for line in received(there)}


def test_what_is_refused_as_the_end_comes_is_counted(tmp_path: Path) -> None:
    """Points that a server refuses are counted in the moment in which they leave memory, not after the log has it."""

    class Slow(logging.Handler):
        said, goes_on = threading.Event(), threading.Event()

        def emit(self, record: logging.LogRecord) -> None:
            if "data was lost" in record.getMessage():
                self.said.set()
                self.goes_on.wait(10)

    registry, handler = Registry(), Slow()
    logging.getLogger("tachograph").addHandler(handler)
    try:
        with receiving(*[(413, {}, b"")] * 200) as there:
            out = exporter(base(there), tmp_path, registry)
            feed(out, events(0, 40))
            assert handler.said.wait(10)
            out.close(0.1)
            assert sum(dropped(registry).values()) + len(waits(tmp_path)) == 40
            handler.goes_on.set()
    finally:
        handler.goes_on.set()
        logging.getLogger("tachograph").removeHandler(handler)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_small_queue_loses_nothing_that_a_server_takes(tmp_path: Path, size: int) -> None:
    """A batch that is longer than the queue arrives where the server is there, and does not wait for a full write."""
    registry = Registry()
    with receiving() as there:
        out = exporter(base(there), tmp_path, registry, queue_size=size, spool_limit=0)
        for start in range(0, 300, 100):
            feed(out, events(start, start + 100))
            assert out.flush(20)
        out.close(5)
        assert arrived(there) == list(range(300))
    assert dropped(registry) == {}


def test_a_small_queue_keeps_what_came_last(tmp_path: Path) -> None:
    """While the server is away the queue holds as many as it says, or the last batch, and counts the others."""
    registry = Registry()
    out = exporter(f"http://127.0.0.1:{free_port()}", tmp_path, registry, queue_size=40, spool_limit=0)
    for start in range(0, 300, 100):
        feed(out, events(start, start + 100))
    feed(out, events(300, 320))
    assert out.waiting <= 100
    out.close(0.1)
    assert sum(dropped(registry).values()) == 320


def test_a_small_queue_goes_in_small_parts(tmp_path: Path) -> None:
    """What makes room in a small queue is a part of it, never all at once."""
    where = f"http://127.0.0.1:{free_port()}"
    out = exporter(where, tmp_path, Registry(), queue_size=40, spool_limit=0, flush_interval=60.0)
    feed(out, events(0, 19))
    assert [request.items for request in out._queue._waiting._requests] == [10, 9]
    out.close(0.1)


def test_an_error_of_a_lock_is_one_of_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where locking fails for another reason than another lock no file is left, and that is said once."""
    flock = failing(10**6, OSError(errno.EIO, "Input/output error"), len)
    made = spool.Spool(tmp_path / "x", 2**20, flock=flock)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            made.append(SpoolRecord("lines", b"x", 1))
    assert list((tmp_path / "x").iterdir()) == []
    registry, nowhere = Registry(), f"http://127.0.0.1:{free_port()}"
    out = exporter(nowhere, tmp_path, registry, first_back_off=0.01, make_spool=partial(spool.Spool, flock=flock))
    feed(out, events(0, 40))
    wait_until(lambda: "keeping undelivered data in memory" in caplog.text)
    out.close(0.1)
    assert spool_files(tmp_path) == []
    assert dropped(registry) == {"shutdown": 40}
    assert sum("Input/output" in record.message for record in caplog.records) == 1


def test_a_file_that_is_adopted_at_once_is_another_ones(tmp_path: Path) -> None:
    """A new file on which another process has the lock in that moment is left to it."""
    made = spool.Spool(tmp_path, 2**20, flock=failing(3, BlockingIOError(errno.EAGAIN, "again"), fcntl.flock))
    made.append(SpoolRecord("lines", b"x", 1))
    assert [record.payload for record in made.take(None)[0]] == [b"x"]


def test_without_locks_replay_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file system without locks keeps what waits; as no process can take it over by itself, the log says how to."""
    flock = failing(10**6, OSError(errno.ENOLCK, "No locks available"), len)
    make_spool, nowhere = partial(spool.Spool, flock=flock), f"http://127.0.0.1:{free_port()}"
    out = exporter(nowhere, tmp_path, Registry(), first_back_off=0.01, make_spool=make_spool)
    feed(out, events(0, 40))
    out.close(0.1)
    assert waits(tmp_path) == list(range(40))
    assert "tachograph resend" in caplog.text
    assert "for the next process" not in caplog.text
    (folder,) = (tmp_path / "spool").iterdir()
    other = make_spool(folder, 2**20)
    assert other.adopt() == 0
    assert waits(tmp_path) == list(range(40))


def test_a_comment_is_no_point(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A measurement that the server would take for a comment is counted and said; the points beside it arrive."""
    registry = Registry()
    with receiving() as there:
        out = exporter(base(there), tmp_path, registry)
        feed(out, [event(0), event(1, measurement="#train"), event(2, measurement="\0#train"), event(3)])
        out.flush(20)
        out.close(5)
        assert arrived(there) == [0, 3]
    assert dropped(registry) == {"encoding": 2}
    assert sum("comment" in record.message for record in caplog.records) == 1
