"""A field that is an integer or None first and a float later, in a real InfluxDB."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import programs
from influx_points import dropped, event, exporter, feed, lines_in, spool_files
from receivers import receiving
from servers import free_port, influxdb1, influxql, wait_until
from tachograph.cli import main
from tachograph.recording.registry import Registry

_WEEK = 7 * 24 * 3600 * 10**9  # a shard of InfluxDB's by default

# Of each measurement: the batches that a program logs one after the other, and the values that the field then has.
_LOGGED: dict[str, tuple[list[list[Any]], list[Any]]] = {
    "one batch": ([[0, 0.5, 0, 0.25]], [0.0, 0.5, 0.0, 0.25]),
    "float first": ([[0.5], [0, None, 2]], [0.5, 0.0, 0.0, 2.0]),
    "None first": ([[None], [0.5, 3]], [0.0, 0.5, 3.0]),
    "None first, then integers": ([[None], [3], [None, 4]], [0.0, 3.0, 0.0, 4.0]),
    "None among integers": ([[3, None], [None, 4]], [3, 0, 0, 4]),
    "NaN first": ([[float("nan")], [1], [0.5]], [None, 1.0, 0.5]),
    "integers": ([[1, 2], [3]], [1, 2, 3]),
    "peers": ([[[], [1, 2]], [None, [3]]], ["", "[1, 2]", "", "[3]"]),
    'odd, "na\'me"=': ([[0, 0.5], [1]], [0.0, 0.5, 1.0]),
}
_FLOATS = {"one batch", "float first", "None first", "None first, then integers", "NaN first", 'odd, "na\'me"='}

_LOG = """
    import json, math, os, sys
    from tachograph import MetricsLogger
    with MetricsLogger() as logger:
        for number in range(3):
            for measurement, batches in json.loads(sys.argv[1]).items():
                for value in batches[number] if number < len(batches) else ():
                    logger.log(measurement, {}, {"f": value, "other field": number, "text": 'f=0,\\n "'})
            assert logger.flush(30)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an InfluxDB that the tests of this file share; each has measurements of its own."""
    with influxdb1(tmp_path_factory.mktemp("influxdb")) as url:
        yield url


def log(folder: Path, base: str, batches: dict[str, list[list[Any]]], **more: str) -> str:
    """Log batches of values in a process of its own, and return what it wrote to standard error."""
    folder.mkdir(exist_ok=True)
    done = programs.run(folder, _LOG, json.dumps(batches), INFLUXDB_HOST=base, **more)
    assert done.returncode == 0, done.stderr
    return done.stderr


def stored(base: str, measurement: str, field: str = "f") -> list[Any]:
    """Return the values of a field, None where a point has none."""
    quoted = measurement.replace('"', '\\"')
    series = influxql(base, f'SELECT "{field}", "other field" FROM "{quoted}"')  # noqa: S608 - a name of our own
    return [row[1] for each in series for row in each["values"]]


def stored_values(base: str, measurement: str) -> list[Any]:
    """Return the values of the field ``f`` of a measurement of one shard."""
    return [row[1] for row in influxql(base, f'SELECT f FROM "{measurement}"')[0]["values"]]  # noqa: S608 - ours


def types(base: str, measurement: str) -> dict[str, str]:
    """Return the types of a measurement's fields."""
    quoted = measurement.replace('"', '\\"')
    (series,) = influxql(base, f'SHOW FIELD KEYS FROM "{quoted}"')
    return dict(series["values"])


def write(base: str, folder: Path, measurement: str, batches: Sequence[Sequence[Any]], **more: Any) -> Registry:
    """Write batches of values of the field ``f`` with an exporter, and return the registry that counts losses.

    Args:
        base: the URL of the database.
        folder: of the exporter's store.
        measurement: of the points.
        batches: each is delivered before the next one is taken.
        **more: for the exporter.
    """
    registry = Registry()
    out = exporter(base, folder, registry, **more)
    times = itertools.count()
    for batch in batches:
        feed(out, [event(next(times), {"f": each, "other field": 1}, {}, measurement=measurement) for each in batch])
        assert out.flush(20)
    out.close(5)
    return registry


def test_what_a_program_logs_has_one_type(base: str, tmp_path: Path) -> None:
    """Integers, floats, None and lists of one field are all stored, in the order in which a program logs them."""
    errors = log(tmp_path, base, {name: batches for name, (batches, _) in _LOGGED.items()})
    assert {name: stored(base, name) for name in _LOGGED} == {name: values for name, (_, values) in _LOGGED.items()}
    found = {name: types(base, name)["f"] for name in _LOGGED}
    assert {name for name, kind in found.items() if kind == "float"} == _FLOATS
    assert found["integers"] == found["None among integers"] == "integer"
    assert set(stored(base, "one batch", "text")) == {'f=0,\n "'}
    assert "field_type" not in errors


def test_a_value_that_no_type_fits_costs_itself(base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a field has integers, whole values and all other fields are stored, others counted, with one warning."""
    with caplog.at_level(logging.WARNING, logger="tachograph"):
        registry = write(base, tmp_path, "two batches", [[0], [0.5, 2.0, 1e300], [0.25, 3]])
    assert stored(base, "two batches") == [0, None, 2, None, None, 3]
    assert stored(base, "two batches", "other field") == [1] * 6
    assert dropped(registry) == {"field_type": 3}
    (warning,) = [record.getMessage() for record in caplog.records if "field_type" in record.getMessage()]
    for part in ("'f'", "'two batches'", "0.5", 'integers="float"', "INFLUXDB_INTEGERS=float"):
        assert part in warning


def test_several_fields_at_once(base: str, tmp_path: Path) -> None:
    """Each field of a batch that does not fit is mended, although the server names only the first one."""
    registry = Registry()
    out = exporter(base, tmp_path, registry)
    names = [f"f{number}" for number in range(5)]
    feed(out, [event(0, dict.fromkeys(names, 1), {}, measurement="several")])
    assert out.flush(20)
    feed(out, [event(1, {**dict.fromkeys(names, 2.0), "f3": 0.5}, {}, measurement="several")])
    feed(out, [event(2, {"f3": 0.5}, {}, measurement="several"), event(3, {"f0": 4}, {}, measurement="several")])
    assert not out.flush(20)  # the second point had no other field, and is lost
    out.close(5)
    series = influxql(base, 'SELECT f0, f1, f2, f3, f4 FROM "several"')
    assert [row[1:] for row in series[0]["values"]] == [[1] * 5, [2, 2, 2, None, 2], [4, None, None, None, None]]
    assert dropped(registry) == {"field_type": 1, "rejected": 1}


def test_two_processes(base: str, tmp_path: Path) -> None:
    """The type that another process has given a field is heeded: integers become floats, floats integers if whole."""
    log(tmp_path / "first", base, {"floats": [[0.5]], "ints": [[1]], "text": [["a"]]})
    errors = log(tmp_path / "second", base, {"floats": [[0, 3], [None]], "ints": [[2.0, 0.5]], "text": [[1]]})
    assert stored(base, "floats") == [0.5, 0.0, 3.0, 0.0]
    assert stored(base, "ints") == [1, 2, None]
    assert stored(base, "text") == ["a", None]
    assert stored(base, "text", "other field") == [0, 0]
    assert errors.count("field_type") == 1


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_integers_as_floats(base: str, tmp_path: Path, by: str) -> None:
    """``integers="float"`` writes all numbers as floats, so that no later value is lost."""
    measurement = f"as floats by {by}"
    program = _LOG.replace("MetricsLogger()", 'MetricsLogger(integers="float")') if by == "argument" else _LOG
    setting = {"INFLUXDB_INTEGERS": "float"} if by == "variable" else {}
    batches = json.dumps({measurement: [[0, None], [0.5, 7]]})
    done = programs.run(tmp_path, program, batches, INFLUXDB_HOST=base, **setting)
    assert done.returncode == 0, done.stderr
    assert stored(base, measurement) == [0.0, 0.0, 0.5, 7.0]
    assert types(base, measurement) == {"f": "float", "other field": "float", "text": "string"}
    assert "field_type" not in done.stderr


def test_the_next_shard_takes_floats(base: str, tmp_path: Path) -> None:
    """A field that has integers in one shard takes floats in the next one, also in a batch with points of both."""
    registry = Registry()
    out = exporter(base, tmp_path, registry)
    points = [(0, 1), (1, 0.5), (1, 2.0), (2 * _WEEK, 0.25), (2, 3), (2 * _WEEK + 1, 1)]
    feed(out, [event(points[0][0], {"f": points[0][1], "g": 1}, {}, measurement="shards")])
    assert out.flush(20)
    feed(
        out,
        [event(at, {"f": value, "g": 1}, {"n": str(n)}, measurement="shards") for n, (at, value) in enumerate(points)],
    )
    assert out.flush(20)
    out.close(5)
    rows = influxql(base, 'SELECT f, g, n FROM "shards"')[0]["values"]
    assert sorted(row[1:] for row in rows if row[3] is not None and row[1] is not None) == sorted(
        [value, 1, str(n)] for n, (_, value) in enumerate(points) if n != 1
    )
    assert [row[2] for row in rows] == [1] * 7
    assert dropped(registry) == {"field_type": 1}


def test_batches_that_wait_together(tmp_path: Path) -> None:
    """Points that wait for a server that is away have one type once it is back, whatever batch they are in."""
    port = free_port()
    registry = Registry()
    out = exporter(f"http://127.0.0.1:{port}", tmp_path, registry, batch_size=2)
    values = [0, 1, 2, 3, 0.5, 4]
    feed(out, [event(number, {"f": value, "g": 1}, {}, measurement="waits") for number, value in enumerate(values)])
    wait_until(lambda: len(lines_in(spool_files(tmp_path))) == len(values))
    with influxdb1(tmp_path / "data", port) as base:
        assert out.flush(20)
        out.close(5)
        assert stored_values(base, "waits") == values
    assert dropped(registry) == {}


def test_what_another_process_has_left(base: str, tmp_path: Path) -> None:
    """Points on the disk have their type decided as well, by the process that sends them."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    left = exporter(nowhere, tmp_path, Registry())
    feed(left, [event(n, {"f": value, "g": 1}, {}, measurement="left") for n, value in enumerate([0, 0.5, 0])])
    left.close(0.1)
    (file,) = spool_files(tmp_path)
    arguments = [str(file), "--to", "influxdb", "--url", base, "--database", "tplr", "--delete"]
    assert main(["resend", *arguments]) == 0
    assert stored_values(base, "left") == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("workers", [1, 4])
def test_several_writes_at_a_time(base: str, tmp_path: Path, workers: int) -> None:
    """With several workers each value is stored once and with one type, after a first write of a float."""
    measurement = f"{workers} workers"
    values = [0.5 if number % 7 == 0 else number for number in range(400)]
    registry = write(base, tmp_path, measurement, [values[:1], values[1:]], batch_size=8, concurrency=workers)
    assert stored(base, measurement) == values
    assert dropped(registry) == {}


def test_a_server_that_fails_in_between(tmp_path: Path) -> None:
    """A write that is mended and then has to be tried again counts the value that it leaves out once."""
    conflict = (
        b'{"error":"partial write: field type conflict: input field \\"f\\" on measurement \\"train\\" '
        b'is type float, already exists as type integer dropped=1"}'
    )
    refused = (400, {}, conflict)
    registry = Registry()
    with receiving((204, {}, b""), refused, (503, {}, b"busy"), refused) as server:
        out = exporter(f"http://127.0.0.1:{server.server_port}", tmp_path, registry)
        for number, value in enumerate([0, 0.5]):
            feed(out, [event(number, {"f": value, "g": 1}, {})])
            assert out.flush(20)
        out.close(5)
    fields = [body.split(b" ")[1] for _, _, body in server.requests]
    assert fields == [b"f=0i,g=1i", b"f=0.5,g=1i", b"g=1i", b"f=0.5,g=1i", b"g=1i"]
    assert dropped(registry) == {"field_type": 1}
