"""The spool: what waits on the disk, bounded, in order, and never twice."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import programs
from influx_points import event, events, leave_as_before
from tachograph.exporters.influxdb.old_spool import PointLines
from tachograph.exporters.otlp.json_text import JsonText, events_of_json, records
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.spool import LIMIT, Spool, spool_limit_of
from tachograph.exporters.spool_format import Framed, Position, SpoolRecord, after
from tachograph.recording.journal import SCHEMA

_WHO = {"dl.rank": 3, "host.name": "h", "ratio": 0.5, "on": True, "args": ["a", "b"]}


def opened(folder: Path, limit: int = 2**20) -> tuple[Spool, list[tuple[int, str, bool]]]:
    """Return a spool, and where it says what it gave up."""
    lost: list[tuple[int, str, bool]] = []
    return Spool(
        folder, limit, lambda *what: lost.append(what), formats={".jsonl": lambda: PointLines(lambda: None)}
    ), lost


def put(spool: Spool, *numbers: int) -> None:
    """Keep a record of one item for each number."""
    for number in numbers:
        spool.append(SpoolRecord("metrics", b"%d" % number, 1))


def taken(spool: Spool) -> list[bytes]:
    """Return the payloads of the oldest segment, in use now."""
    return [record.payload for record in spool.take(10**9)[0]]


def finish(spool: Spool) -> list[bytes]:
    """Return the payloads of the oldest segment, which have arrived."""
    found, _, _ = spool.take(10**9)
    spool.advance(sum(record.size for record in found), 0)
    spool.end()
    return [record.payload for record in found]


def test_records_come_back_in_order_and_segments_go(tmp_path: Path) -> None:
    """Records are taken in the order in which they came, and a segment is deleted once they have arrived."""
    spool, _ = opened(tmp_path)
    put(spool, *range(100))
    first = taken(spool)
    spool.give_back()
    assert taken(spool) == first == [b"%d" % number for number in range(100)]
    put(spool, *range(100, 110))
    spool.give_back()
    assert [int(payload) for payload in finish(spool)] == list(range(110))
    assert spool.empty
    assert list(tmp_path.glob("*")) == []


def test_what_has_arrived_of_a_segment_is_not_taken_again(tmp_path: Path) -> None:
    """The next process goes on after the last item that arrived, in the middle of a record, too."""
    spool, _ = opened(tmp_path)
    for number in range(3):
        spool.append(
            SpoolRecord("lines", b"\n".join(b"%d" % each for each in range(number * 10, number * 10 + 10)), 10)
        )
    found, _, _ = spool.take(10**9)
    spool.advance(found[0].size, 4)
    spool.close()
    other, _ = opened(tmp_path)
    assert other.adopt() == 1
    found, arrived, uncertain = other.take(10**9)
    assert [record.payload[:2] for record in found] == [b"10", b"20"]
    assert (arrived, uncertain) == (4, False)


def test_what_was_on_its_way_at_a_kill_is_known_to_be(tmp_path: Path) -> None:
    """A request that was being sent when its process was killed may have arrived: the next one knows that."""
    spool, _ = opened(tmp_path)
    put(spool, 1, 2)
    spool.take(None)
    spool.trying(uncertain=True)
    spool.close()
    other, _ = opened(tmp_path)
    other.adopt()
    assert other.take(None)[2]
    other.trying(uncertain=False)
    other.give_back()
    assert not other.take(None)[2]


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    """Files are made 0600, and folders 0700."""
    spool, _ = opened(tmp_path / "a" / "b")
    put(spool, 1)
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)] == [0o600, 0o700, 0o700]


def test_the_oldest_go_where_the_share_is_full(tmp_path: Path) -> None:
    """The spool stays within its bound, and what goes is counted exactly."""
    spool, lost = opened(tmp_path, 20_000)
    put(spool, *range(2000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    left: list[int] = []
    while not spool.empty:
        left += [int(payload) for payload in finish(spool)]
    gone = sum(count for count, _, _ in lost)
    assert left == list(range(gone, 2000))
    assert 0 < gone < 2000
    assert {(reason, own) for _, reason, own in lost} == {("spool_full", True)}


def test_one_record_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    """A record that is longer than the whole share is given up; those that wait stay."""
    spool, lost = opened(tmp_path, 2_000)
    put(spool, 1, 2)
    spool.append(SpoolRecord("traces", b"x" * 2_000, 7))
    assert lost == [(7, "spool_full", True)]
    assert taken(spool) == [b"1", b"2"]


def test_nobody_takes_over_what_is_in_use(tmp_path: Path) -> None:
    """A segment that a living process uses is not taken over; once that is gone, one other takes it, and only one."""
    mine, _ = opened(tmp_path)
    put(mine, 1, 2, 3)
    other, _ = opened(tmp_path)
    assert other.adopt() == 0
    mine.close()
    third, _ = opened(tmp_path)
    assert [other.adopt(), third.adopt()] == [1, 0]
    assert len(taken(other)) == 3


def test_a_folder_of_a_run_goes_with_its_last_segment(tmp_path: Path) -> None:
    """A run's folder is not left behind where nothing waits in it, and stays where something does."""
    for number, left in ((1, False), (2, True)):
        spool = Spool(tmp_path / str(number), 2**20, of="run")
        put(spool, 1)
        if not left:
            finish(spool)
        spool.close(tidy=True)
        assert (tmp_path / str(number)).exists() == left


@pytest.mark.process
def test_a_torn_record_is_ignored_and_counted(tmp_path: Path) -> None:
    """What a process that was killed had not finished is told apart from what it had, and stands for its items."""
    program = """
        import os, signal
        from pathlib import Path
        from tachograph.exporters.spool import Spool
        from tachograph.exporters.spool_format import Framed, SpoolRecord
        spool = Spool(Path("spool"), 2**20)
        for number in range(40):
            spool.append(SpoolRecord("metrics", b"%d" % number, 1))
        spool._open._expect(47)
        torn = Framed().record(SpoolRecord("metrics", b"x" * 500, 7), 40)[:-200]
        os.pwrite(spool._open.file, torn, spool._open.size)
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
    assert [int(payload) for payload in taken(spool)] == list(range(40))
    found, _, _ = spool.take(10**9)
    assert [(record.payload, record.items) for record in found] == [(b"", 7)]
    assert [(lost.items, lost.reason) for record in found for lost in record.lost] == [(7, "damaged")]


@given(
    bodies=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 40)), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_file_that_anything_happened_to_is_read_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    """A cut, or bytes that change after the header, yield whole records, and of the others the number of items."""
    form = Framed()
    path = tmp_path_factory.mktemp("damage") / "1.spool"
    before = list(itertools.accumulate((items for _, items in bodies), initial=0))
    whole = form.header(Position(form.begins_at, 0, written=before[-1])) + b"".join(
        form.record(SpoolRecord("logs", *each), upto) for each, upto in zip(bodies, before, strict=False)
    )
    at = data.draw(st.integers(form.begins_at, len(whole) - 1))
    other = data.draw(st.binary(min_size=1, max_size=100))
    changed = bytearray(whole)
    changed[at : at + len(other)] = other
    del changed[len(whole) :]
    path.write_bytes(data.draw(st.sampled_from([whole[:at], bytes(changed)])))
    found: list[SpoolRecord] = []
    with path.open("rb") as file:
        size, place = os.fstat(file.fileno()).st_size, Position(form.begins_at, 0, written=before[-1])
        while (record := form.read(file.fileno(), place, size)) is not None:
            found.append(record)
            place = after(place, record)
    assert place.offset == size
    assert all((record.payload, record.items) in bodies or record.lost for record in found)
    cut = before[-1] - place.before
    assert (cut == 0) if size == len(whole) else (cut >= 0)


def test_what_was_written_over_a_record_is_not_taken_for_a_number_of_items(tmp_path: Path) -> None:
    """Records that something else was written over stand for the items that were written, whatever is there now."""
    spool, _ = opened(tmp_path)
    put(spool, *range(20))
    (path,) = tmp_path.glob("*.spool")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(Framed.begins_at)
        file.write(b"\xff" * (size - Framed.begins_at))
    found, _, _ = spool.take(10**9)
    assert [lost.items for record in found for lost in record.lost] == [20]


def overwrite(path: Path, at: int, other: bytes) -> None:
    """Write over a part of a file, which stays as long as it is."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(other[: size - at])


def delivered(spool: Spool) -> tuple[list[int], int]:
    """Return the items of all records that could be read, and how many were lost as they were taken."""
    arrived: list[int] = []
    lost = 0
    while not spool.empty:
        found, kept, _ = spool.take(10**9)
        for record in found:
            arrived += record.payload[-record.items or len(record.payload) :][kept:] if record.payload else b""
            lost += sum(each.items for each in record.lost) - (kept if record.lost else 0)
            kept = 0
        spool.advance(sum(record.size for record in found), 0)
        spool.end()
    return arrived, lost


@given(
    bodies=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    moment=st.sampled_from(["while it runs", "before its end", "after its end"]),
    arrived=st.booleans(),
    data=st.data(),
)
def test_what_is_written_over_a_file_is_counted_once_to_the_item(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[int], moment: str, arrived: bool, data: st.DataObject
) -> None:
    """Whatever is overwritten behind the first bytes, and when: each item arrives, or is counted, by one process."""
    folder = tmp_path_factory.mktemp("overwritten")
    spool, lost = opened(folder)
    items = iter(range(256))
    for count in bodies:
        spool.append(SpoolRecord("logs", bytes(itertools.islice(items, count)), count))
    (path,) = folder.glob("*.spool")
    size = path.stat().st_size
    first = 0
    if arrived:  # a part of the first record
        first = bodies[0] // 2
        spool.take(10**9)
        spool.advance(0, first)
        spool.give_back()
    at, other = data.draw(st.integers(Framed.begins_at, size - 1)), data.draw(st.binary(min_size=1, max_size=100))
    if moment != "after its end":
        overwrite(path, at, other)
    if moment == "while it runs":
        found, gone = delivered(spool)
        spool.lose_what_is_gone()
        spool.close()
    else:
        spool.lose_what_is_gone()
        spool.close()
        if moment == "after its end":
            overwrite(path, at, other)
        heir, more = opened(folder)
        heir.adopt()
        found, gone = delivered(heir)
        lost += more
    assert len(found) == len(set(found))
    assert set(found) <= set(range(first, sum(bodies)))
    assert first + len(found) + gone + sum(count for count, *_ in lost) == sum(bodies)
    assert gone == 0 or moment != "before its end"


def test_a_file_whose_first_bytes_are_overwritten_is_sent_from_its_first_whole_record(tmp_path: Path) -> None:
    """It may have arrived already, and says so; of what was before it, at most all is counted."""
    spool, _ = opened(tmp_path)
    for number in range(5):
        spool.append(SpoolRecord("logs", bytes(range(number * 3, number * 3 + 3)), 3))
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    overwrite(path, 20, b"x" * (Framed.begins_at + 10))
    heir, lost = opened(tmp_path)
    assert heir.adopt() == 1
    found, _, uncertain = heir.take(10**9)
    assert uncertain
    assert all(record.uncertain for record in found)
    heir.give_back()
    arrived, gone = delivered(heir)
    assert arrived == list(range(6, 15))
    assert (gone, lost) == (0, [(6, "damaged", False)])


def test_the_first_bytes_are_mended_by_the_process_that_wrote_them(tmp_path: Path) -> None:
    """As long as a process runs, it knows what was in them, and loses nothing with them."""
    spool, lost = opened(tmp_path)
    put(spool, *range(20))
    (path,) = tmp_path.glob("*.spool")
    overwrite(path, 0, b"x" * Framed.begins_at)
    spool.lose_what_is_gone()
    spool.close()
    heir, more = opened(tmp_path)
    assert heir.adopt() == 1
    assert [int(payload) for payload in finish(heir)] == list(range(20))
    assert lost + more == []


def test_a_file_that_is_cut_between_two_processes_is_counted(tmp_path: Path) -> None:
    """What a cut has taken from a file that nobody used is counted by the next process, where nothing is left, too."""
    for cut, left in ((170, 3), (128, 0)):
        spool, _ = opened(tmp_path / str(cut))
        spool.append(SpoolRecord("logs", bytes(range(3)), 3))
        spool.append(SpoolRecord("logs", bytes(range(3, 5)), 2))
        spool.close()
        (path,) = (tmp_path / str(cut)).glob("*.spool")
        os.truncate(path, cut)
        heir, lost = opened(tmp_path / str(cut))
        heir.adopt()
        arrived, gone = delivered(heir)
        assert (len(arrived), gone + sum(count for count, *_ in lost)) == (left, 5 - left)


def test_a_full_disk_leaves_no_part_of_a_record(tmp_path: Path) -> None:
    """A record that does not fit is an OSError, and those before it stay whole."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool, _ = opened(tmp_path)
    put(spool, 1)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (160, before[1]))
        with pytest.raises(OSError, match="large"):
            spool.append(SpoolRecord("metrics", b"second" * 10, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert taken(spool) == [b"1"]


@pytest.mark.parametrize("size", [0, 10, 128, 170])
def test_a_file_that_is_cut(tmp_path: Path, size: int) -> None:
    """What a cut has taken is counted to the last item, what comes then is in a file of its own, and all is read."""
    spool, lost = opened(tmp_path)
    spool.append(SpoolRecord("metrics", b"abc", 3))
    spool.append(SpoolRecord("metrics", b"de", 2))
    (path,) = tmp_path.glob("*.spool")
    os.truncate(path, size)
    spool.append(SpoolRecord("metrics", b"f", 1))
    counted, whole = 0, 0
    while not spool.empty:
        found, _, _ = spool.take(10**9)
        counted += sum(each.items for record in found for each in record.lost)
        whole += sum(record.items for record in found if record.payload)
        spool.advance(sum(record.size for record in found), 0)
        spool.end()
    assert whole + counted + sum(count for count, *_ in lost) == 6
    assert whole == (4 if size == 170 else 1)
    assert {reason for _, reason, _ in lost} <= {"damaged"}


def test_files_that_are_deleted(tmp_path: Path) -> None:
    """What was deleted can still be sent; at the end what could not is counted, and the rest waits on the disk."""
    spool, lost = opened(tmp_path / "spool")
    put(spool, 0, 1, 2)
    shutil.rmtree(tmp_path / "spool")
    put(spool, 3, 4)
    assert len(taken(spool)) == 3
    spool.give_back()
    spool.lose_what_is_gone()
    spool.close()
    assert lost == [(3, "damaged", True)]
    other, _ = opened(tmp_path / "spool")
    assert other.adopt() == 1
    assert taken(other) == [b"3", b"4"]


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    """A file whose first bytes this version does not know is neither sent nor deleted."""
    (tmp_path / "1.spool").write_bytes(b"tachograph spool 3 ".ljust(200))
    spool, _ = opened(tmp_path)
    assert spool.adopt() == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("arrived", [0, 40, 64])
def test_a_file_of_an_earlier_version_is_sent(tmp_path: Path, arrived: int) -> None:
    """What an earlier version has left becomes lines as it is read, without what had arrived, and the file goes."""
    leave_as_before(tmp_path / "1.jsonl", events(0, 100), arrived=arrived)
    spool, lost = opened(tmp_path)
    assert spool.adopt() == 1
    found = [line for payload in finish(spool) for line in payload.split(b"\n")]
    assert [int(line.split(b"n=")[1].split(b"i")[0]) for line in found] == list(range(arrived, 100))
    assert lost == []
    assert list(tmp_path.iterdir()) == []


def as_json(seq: int) -> bytes:
    """Return an event as earlier versions kept it."""
    ((request, _),) = log_requests([event(seq)], _WHO, print, lambda: None)
    return JsonText(lambda: None).line(request)


def test_a_later_version_is_left_out() -> None:
    """A record with a schema that is newer than ours is counted and not read."""
    said = b'{"key":"tachograph.schema","value":{"intValue":"%d"}'
    line = as_json(1)
    assert said % 1 in line
    ((_, found, newer),) = events_of_json(line.replace(said % 1, said % (SCHEMA + 1)))
    assert (found, newer) == ([], 1)


def test_events_come_back_as_they_were() -> None:
    """Who recorded it, its time and its number survive the way through JSON, and a line says how many it has."""
    ((who, (found,), newer),) = events_of_json(as_json(7))
    assert (who, found.seq, found.time_unix_nano, newer) == (_WHO, 7, event(7).time_unix_nano, 0)
    assert records(as_json(7)) == 1


def test_a_nested_configuration_comes_back_as_it_was() -> None:
    """Lists, mappings in lists and null survive the way through JSON."""
    config = {"betas": [0.9, 1], "stages": [{"width": 8, "norm": None}], "resume": None, "empty": {}}
    ((request, _),) = log_requests(
        [event(1)._replace(attributes={"tachograph.config": config})], _WHO, print, lambda: None
    )
    ((_, (found,), _),) = events_of_json(JsonText(lambda: None).line(request))
    assert found.attributes == {"tachograph.config": config}


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b'{"resourceLogs": [1]}', b'{"resourceLogs": 1}', b"\xff"])
def test_what_is_no_request_is_said(line: bytes) -> None:
    """A damaged line is a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        events_of_json(line)


def test_a_limit_is_only_there_where_it_is_set() -> None:
    """TACHOGRAPH_SPOOL_LIMIT is a number of bytes; None where it is not set: InfluxDB alone has a default then."""
    assert spool_limit_of({}) is None
    assert spool_limit_of({"TACHOGRAPH_SPOOL_LIMIT": "0"}) == 0
    assert spool_limit_of({"TACHOGRAPH_SPOOL_LIMIT": str(LIMIT)}) == LIMIT
    with pytest.raises(ValueError, match="number of bytes"):
        spool_limit_of({"TACHOGRAPH_SPOOL_LIMIT": "1G"})
