"""What a hub writes into a run's file through the writer, the typed queries read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.runs import queries
from tachograph.runs.blocks import Sample
from tachograph.runs.file import RunFile, look
from tachograph.runs.members import notes, tags
from tachograph.runs.point_records import CurveRecord
from tachograph.runs.queries import Rows, SeriesKey, StoredSample
from tachograph.runs.store import Store, path_of
from tachograph.runs.writer import RunWriter, StartKey, open_transaction

KEY = SeriesKey("training", "load", "1", "gauge", "[]")


def write(writer: RunWriter) -> None:
    """Write something of each kind."""
    process = writer.add_process("i", {"dl.rank": 0})
    start = StartKey(process, 7, 1)
    times = {"first_export": 10, "last_export": 20, "interval": 5}
    writer.save_start(start, announced=1, **times, ended="", lost=False)
    writer.save_failure(start, 19, "ValueError", "no")
    stream = writer.add_stream("s", process)
    numbers = writer.read_sequence_numbers(stream)
    for seq in (1, 2, 3):
        numbers.add(seq)
    writer.save_sequence_numbers(stream, numbers)
    assert writer.add_event(stream, (1, 11, 12, "began", "scope", b"record"))
    assert not writer.add_event(stream, (1, 11, 12, "began", "scope", b"record"))
    curve = CurveRecord(0, "loss", "", "[]", 0, None, {"units": "nats"})
    points = [curve._replace(sample=Sample(seq, seq, float(seq), 0.5, {}), about={}) for seq in (2, 3)]
    writer.curves(stream).add_records([(1, 1, curve), *((2, 2, point) for point in points)])
    series = writer.add_series(process, KEY, "")
    writer.save_states([(series, 20, "[1]")])
    writer.save_samples([(series, time, float(time), None, None) for time in (10, 20, 30)])
    writer.add_description(1, ["small"], "a note")


def everything(rows: Rows) -> list[object]:
    """Return what queries of each kind find."""
    return [
        list(queries.read_starts(rows)),
        queries.find_process(rows, "i"),
        queries.read_failures(rows),
        list(queries.read_streams(rows)),
        list(queries.read_events(rows, names=("began", "other"))),
        list(queries.read_curves(rows, "loss")),
        list(queries.read_definitions(rows, "loss")),
        list(queries.read_blocks(rows, 1, newest_first=True)),
        queries.read_last_block(rows, 1),
        queries.read_block_near(rows, [1], 3, is_before=True),
        queries.read_curve_extents(rows),
        queries.read_last_numbers(rows),
        list(queries.read_series(rows, "load", with_state=True)),
        queries.find_state(rows, "i", KEY),
        list(queries.read_samples(rows, 1, low=15)),
        queries.read_sample_span(rows, 1, 0, 25),
        queries.read_gauge_stretch(rows, 1, 0, 25),
        queries.count_samples(rows, 1, 0, 100, limit=2),
        list(queries.read_samples_since(rows, 20)),
        tags(rows),
        notes(rows),
    ]


def test_the_hub_and_readers_find_what_was_written(tmp_path: Path) -> None:
    """The store, a file and a look at it give the same typed rows."""
    store = Store(tmp_path, "run")
    with open_transaction(store) as writer:
        write(writer)
    rows = everything(store.read)
    store.close()
    file = RunFile(path_of(tmp_path, "run"))
    assert everything(file.rows) == rows
    with look(file) as reading:
        assert everything(reading.rows) == rows
        (block,) = queries.read_blocks(reading.rows, 1)
        assert [sample.seq for sample in queries.read_samples_of_block(file, block)] == [2, 3]
        assert list(queries.read_samples(reading.rows, 1, low=15)) == [
            StoredSample(20, 20.0, None, None),
            StoredSample(30, 30.0, None, None),
        ]
    assert file.damage == []


def test_a_transaction_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """An error in a transaction leaves the file as it was."""
    store = Store(tmp_path, "run")

    def fail() -> None:
        with open_transaction(store) as writer:
            write(writer)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not any(store.read("SELECT 1 FROM process UNION ALL SELECT 1 FROM event UNION ALL SELECT 1 FROM tag"))
    store.close()
