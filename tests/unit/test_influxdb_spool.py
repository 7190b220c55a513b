"""The spool: what waits on the disk, bounded, in order, and never twice."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import programs
from influx_points import event, events, leave
from places import TESTS
from tachograph.exporters.influxdb._parcel import packed, unpacked
from tachograph.exporters.influxdb._spool import Spool
from tachograph.exporters.influxdb._spooling import request_line
from tachograph.exporters.influxdb.spooled import records, spooled
from tachograph.recording.journal import LogEvent

_WHO = {"dl.rank": 3, "host.name": "h", "ratio": 0.5, "on": True, "args": ["a", "b"]}


def opened(folder: Path, limit: int = 2**20) -> tuple[Spool, list[tuple[int, str, bool]]]:
    """Return a spool, and where it says what it gave up."""
    lost: list[tuple[int, str, bool]] = []
    return Spool(folder, limit, lambda *what: lost.append(what), lambda: None), lost


def taken(spool: Spool) -> list[bytes]:
    """Return the lines of the oldest file."""
    found = []
    while (line := spool.take()) is not None:
        found.append(line[0])
    return found


def test_events_come_back_as_they_were() -> None:
    """Times, numbers, texts, NaN, infinities, 64-bit integers and who recorded them survive the disk."""
    fields = {"nan": math.nan, "inf": -math.inf, "i": 2**63 - 1, "f": 0.1, "s": 'q"\n\\é', "b": True}
    before = [event(1, fields), event(2)]
    ((resource, after, newer),) = spooled(request_line(before, _WHO))
    assert resource == _WHO
    assert newer == 0
    assert repr(after) == repr([LogEvent(*each[:3], dict(each.attributes), *each[4:]) for each in before])
    assert records(request_line(before, _WHO)) == 2


def test_a_line_is_an_otlp_request() -> None:
    """Each line is OTLP as JSON: the official messages read it."""
    told = json.loads(request_line([event(1)], _WHO))
    request = json_format.ParseDict(told, ExportLogsServiceRequest())
    (record,) = request.resource_logs[0].scope_logs[0].log_records
    assert record.event_name == "tachograph.point"
    assert {"tachograph.stream", "tachograph.seq", "tachograph.fields"} <= {pair.key for pair in record.attributes}


@given(st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.floats(), st.text())), max_size=9))
def test_packing_loses_nothing(many: list[dict[str, object]]) -> None:
    """What waits in memory is, unpacked, what it was."""
    before = [event(number, fields) for number, fields in enumerate(many)]
    lost: list[object] = []
    after = [
        each for parcel in packed(before, {}, 1.0, lambda *what: lost.append(what), 4) for each in unpacked(parcel)
    ]
    assert repr(after) == repr([LogEvent(*each[:3], dict(each.attributes), *each[4:]) for each in before])
    assert lost == []


def test_what_cannot_be_packed_costs_only_itself() -> None:
    """A value of a foreign type loses its own point, and says so."""
    lost: list[tuple[int, str]] = []
    some = [event(1), event(2, {"x": object()}), event(3)]
    found = [each.seq for parcel in packed(some, {}, 1.0, lambda *what: lost.append(what)) for each in unpacked(parcel)]
    assert found == [1, 3]
    assert [count for count, _ in lost] == [1]


def test_lines_come_back_in_order_and_files_go(tmp_path: Path) -> None:
    """Lines are taken in the order in which they came, and a file is deleted once its lines are accepted."""
    spool, _ = opened(tmp_path)
    leave(spool, events(0, 100))
    first = taken(spool)
    spool.give_back()
    assert taken(spool) == first
    leave(spool, events(100, 110))
    spool.accept()
    assert [each.seq for line in taken(spool) for part in spooled(line) for each in part.events] == list(
        range(100, 110)
    )
    spool.accept()
    assert spool.empty
    assert list(tmp_path.glob("*")) == []


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    """Files are made 0600, and folders 0700."""
    spool, _ = opened(tmp_path / "a" / "b")
    spool.append(b"x\n")
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)] == [0o600, 0o700, 0o700]


def test_the_oldest_go_where_the_share_is_full(tmp_path: Path) -> None:
    """The spool stays within its bound, and what goes is counted exactly."""
    spool, lost = opened(tmp_path, 200_000)
    leave(spool, events(0, 2000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200_000
    left: list[int] = []
    while not spool.empty:
        left += [each.seq for line in taken(spool) for part in spooled(line) for each in part.events]
        spool.accept()
    gone = sum(count for count, _, _ in lost)
    assert left == list(range(gone, 2000))
    assert 0 < gone < 2000
    assert {(reason, own) for _, reason, own in lost} == {("spool_full", True)}


def test_nobody_takes_over_what_is_in_use(tmp_path: Path) -> None:
    """A file that a living process uses is not taken over; once that is gone, one other takes it, and only one."""
    mine, _ = opened(tmp_path)
    leave(mine, events(0, 3))
    other, _ = opened(tmp_path)
    assert other.adopt() == 0
    mine.close()
    third, _ = opened(tmp_path)
    assert [other.adopt(), third.adopt()] == [1, 0]
    assert len(taken(other)) == 1


@pytest.mark.process
def test_a_torn_line_is_skipped_and_counted(tmp_path: Path) -> None:
    """What a process that was killed had not finished is told apart from what it had."""
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from influx_points import events, leave
        from tachograph.exporters.influxdb._spool import Spool
        from tachograph.exporters.influxdb._spooling import request_line
        spool = Spool(Path("spool"), 2**20, print, lambda: None)
        leave(spool, events(0, 40))
        os.pwrite(spool._open.file, request_line(events(40, 43), {{}})[:-200], spool._open.size)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, str(programs.write(tmp_path, program))],
        cwd=tmp_path,
        env=programs.environment(tmp_path),
        timeout=60,
        check=False,
    )
    assert done.returncode == -9
    spool, _ = opened(tmp_path / "spool")
    assert spool.adopt() == 1
    *whole, torn = taken(spool)
    assert [each.seq for line in whole for part in spooled(line) for each in part.events] == list(range(40))
    assert not torn.endswith(b"\n")
    assert records(torn) == 3
    spool.accept()
    assert spool.empty


def test_a_later_version_is_left_out() -> None:
    """A record with a schema that is newer than ours is counted and not read."""
    said = b'{"key":"tachograph.schema","value":{"intValue":"%d"}'
    line = request_line([event(1)], {})
    assert said % 1 in line
    ((_, found, newer),) = spooled(line.replace(said % 1, said % 2))
    assert (found, newer) == ([], 1)


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b'{"resourceLogs": [1]}', b'{"resourceLogs": 1}', b"\xff"])
def test_what_is_no_request_is_said(line: bytes) -> None:
    """A damaged line is a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        spooled(line)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    """A line that does not fit is an OSError, and the lines before it stay whole."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool, _ = opened(tmp_path)
    spool.append(b"first\n")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(OSError, match="large"):
            spool.append(b"second line\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert taken(spool) == [b"first\n"]


@pytest.mark.parametrize("size", [0, 10])
def test_a_file_that_is_cut(tmp_path: Path, size: int) -> None:
    """What a cut has taken is counted to the last record, what comes then is in a file of its own, and all is read."""
    spool, lost = opened(tmp_path)
    leave(spool, events(0, 3))
    leave(spool, events(3, 5))
    (path,) = tmp_path.glob("*.jsonl")
    os.truncate(path, size)
    leave(spool, events(5, 6))
    torn = taken(spool)
    spool.accept()
    assert sum(map(records, torn)) + sum(count for count, *_ in lost) == 5
    assert {reason for _, reason, _ in lost} == {"damaged"}
    assert [each.seq for line in taken(spool) for part in spooled(line) for each in part.events] == [5]
    spool.accept()
    assert spool.empty


def test_files_that_are_deleted(tmp_path: Path) -> None:
    """What was deleted can still be sent; at the end what could not is counted, and the rest waits on the disk."""
    spool, lost = opened(tmp_path / "spool")
    leave(spool, events(0, 3))
    shutil.rmtree(tmp_path / "spool")
    leave(spool, events(3, 5))
    assert len(taken(spool)) == 1
    spool.give_back()
    spool.lose_what_is_gone()
    spool.close()
    assert lost == [(3, "damaged", True)]
    (path,) = (tmp_path / "spool").iterdir()
    found = [each for line in path.read_bytes().splitlines() for part in spooled(line) for each in part.events]
    assert [each.seq for each in found] == [3, 4]
