"""``tachograph resend``: a spool, a JSON-lines file or an exported run, to any exporter."""

from __future__ import annotations

import errno
import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import programs
import tachograph.runs
from hub_requests import exponential, metrics, rank
from hubs import serving
from influx_points import event, events, leave
from receivers import receiving
from scripted import scripted
from servers import free_port, influxdb1, influxql
from tachograph.cli import main
from tachograph.cli.resend import recording
from tachograph.exporters.batch import Batch
from tachograph.exporters.jsonl import JsonLines
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.otlp.logs import log_requests
from tachograph.exporters.spool import Spool
from tachograph.exporters.spool_format import SpoolRecord
from tachograph.hub._rejections import Rejected
from tachograph.hub.hub import Hub
from tachograph.recording.journal import LOG, LogEvent, packed_event
from tachograph.recording.packed_points import PackedPoints
from tachograph.recording.pulse_source import PULSE
from tachograph.recording.registry import Registry
from tachograph.runs.recorded import CALLS, FAILURE, plain_attributes

_WHO = {"dl.rank": 1}
_SECRET = {"severity_number": 9, "severity_text": "INFO", "body": "secret"}
_FAILED_CALL = [1_700_000_000_000_000_000, 0.5, "ValueError", "secret", ""]
_PRIVATE = {
    CALLS: {CALLS: json.dumps([{"group": "g", "function": "f", "slowest": [], "failed": [_FAILED_CALL]}])},
    **dict.fromkeys((FAILURE, LOG), _SECRET),
    PULSE: {PULSE: json.dumps({"said": "secret"})},
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the commands see no setting of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "INFLUXDB_", "TACHOGRAPH_")) and name != "TACHOGRAPH_TEST_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TACHOGRAPH_STORE", str(tmp_path / "store"))


def spooled(folder: Path, start: int = 0, stop: int = 100) -> Path:
    """Leave points behind as a process that has ended does, and return the folder."""
    spool = Spool(folder, 2**30)
    leave(spool, events(start, stop), _WHO)
    spool.close()
    return folder


def json_lines(folder: Path, start: int = 0, stop: int = 100) -> Path:
    """Write points as the exporter jsonl does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_json_lines(folder / f"{start:020d}.jsonl", events(start, stop)).parent


def write_json_lines(path: Path, points: Sequence[LogEvent]) -> Path:
    """Write points as the exporter jsonl does, 32 a line, and return the file."""
    requests = (
        log_requests(points[start : start + 32], _WHO, print, lambda: None) for start in range(0, len(points), 32)
    )
    path.write_bytes(b"".join(JsonText(lambda: None).line(request) for ((request, _),) in requests))
    return path


def test_a_spool_arrives_in_influxdb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every point of a folder's files arrives; nothing is deleted."""
    folder = spooled(tmp_path / "spool")
    with influxdb1(tmp_path / "data") as base:
        assert main(["resend", str(folder), "--to", "influxdb", "--url", base, "--database", "tplr"]) == 0
        (series,) = influxql(base, 'SELECT COUNT("loss"), COUNT("s") FROM "train"')
        assert series["values"] == [[0, 100, 100]]
    said = capsys.readouterr()
    assert "sent 100 events from 1 file" in said.err
    assert said.out == ""
    assert len(list(folder.iterdir())) == 1


def test_files_are_deleted_where_that_is_asked_for(tmp_path: Path) -> None:
    """With --delete a file goes once everything in it has arrived."""
    folder = json_lines(tmp_path / "spool")
    out = tmp_path / "out.jsonl"
    assert main(["resend", str(folder), "--to", "jsonl", "--output", str(out), "--delete"]) == 0
    assert list(folder.iterdir()) == []
    found = programs.events(out)
    assert [int(each["attributes"]["tachograph.seq"]) for each in found] == list(range(100))
    assert found[7]["attributes"]["tachograph.fields"] == {"loss": 1.0, "n": 7, "s": "no 7"}


def test_nothing_is_deleted_that_did_not_arrive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody takes the points the exit code is 1, a line says so, and the file stays."""
    folder = spooled(tmp_path / "spool", 0, 3)
    line = ["resend", str(folder), "--to", "influxdb", "--database", "tplr", "--url", f"http://127.0.0.1:{free_port()}"]
    assert main([*line, "--delete", "--timeout", "0.5"]) == 1
    assert "not everything arrived" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1


def test_what_the_exporter_jsonl_wrote_is_replayed(tmp_path: Path) -> None:
    """A file of ``start(logs="jsonl")`` is sent with its NaN; its metrics are left out, and said."""
    journal = tmp_path / "journal.jsonl"
    program = f"""
        import tachograph
        with tachograph.start(metrics="jsonl", logs="jsonl", jsonl={str(journal)!r}):
            metric = tachograph.Metric("loss", group="training", throttle=None)
            for at, value in enumerate((0.5, float("nan"), 0.25)):
                metric.record(value, at=at)
    """
    assert programs.run(tmp_path, program).returncode == 0
    out = tmp_path / "out.jsonl"
    assert main(["resend", str(journal), "--to", "jsonl", "--output", str(out)]) == 0
    points = [each["attributes"] for each in programs.events(out) if each["eventName"] == "tachograph.metric"]
    assert [point["x"] for point in points] == [0.0, 1.0, 2.0]
    assert math.isnan(points[1]["value"])
    assert len(programs.events(out)) == len(programs.events(journal))


def test_an_exported_run_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Points and events of ``tachograph runs export --format jsonl`` are sent; a line that is neither is said."""
    at = 1_700_000_000_000_000_000
    point = {"kind": "point", "metric": "loss", "group": "g", "units": "", "rank": 2, "execution": 0, "branch": 0}
    lines = [
        {**point, "x": 1.0, "time_unix_nano": at, "value": "NaN", "stream": "ab", "seq": 1},
        {"kind": "event", "rank": None, "name": "saved", "time_unix_nano": at, "attributes": {"path": "p"}, "seq": 2},
        {"kind": "definition", "metric": "loss"},
        {"what": "is this"},
    ]
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out.jsonl"
    assert main(["resend", str(file), "--to", "jsonl", "--output", str(out)]) == 1
    first, second = programs.events(out)
    assert (first["eventName"], second["eventName"]) == ("tachograph.metric", "saved")
    assert math.isnan(first["attributes"]["value"])
    said = capsys.readouterr().err
    assert "1 line cannot be read" in said
    assert "skipped 1 metrics, spans and definitions" in said


def test_a_file_without_telemetry_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of something else is an error that says so, and nothing is sent."""
    (tmp_path / "train.py").write_text("import torch\nprint(1)\n")
    assert main(["resend", str(tmp_path / "train.py"), "--to", "jsonl", "--output", str(tmp_path / "out.jsonl")]) == 1
    said = f"{tmp_path / 'train.py'} has no telemetry (2 lines cannot be read); nothing was sent\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["resourceMetrics", "resourceLogs"])
def test_a_line_that_is_nested_too_deeply_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: str
) -> None:
    """A line that JSON's decoder gives up on is one that cannot be read; the others are sent."""
    event = {"kind": "event", "rank": None, "name": "saved", "time_unix_nano": 1, "attributes": {}, "seq": 2}
    (tmp_path / "run.jsonl").write_text(f'{{"{inside}":[' * 100_000 + "\n" + json.dumps(event) + "\n")
    out = tmp_path / "out.jsonl"
    assert main(["resend", str(tmp_path / "run.jsonl"), "--to", "jsonl", "--output", str(out)]) == 1
    assert [each["eventName"] for each in programs.events(out)] == ["saved"]
    assert "1 line cannot be read" in capsys.readouterr().err


def test_the_console_shows_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--to console prints a line for each event."""
    assert main(["resend", str(json_lines(tmp_path / "spool", 0, 3)), "--to", "console"]) == 0
    assert capfd.readouterr().out.count("tachograph.point") == 3


def test_a_spool_of_otlp_is_sent_as_it_is(tmp_path: Path) -> None:
    """Requests of each signal go to the endpoint byte for byte, in order, and what has arrived does not go again."""
    spool = Spool(tmp_path / "spool", 2**30)
    bodies = [("metrics", b"m1", 3), ("logs", b"l1", 2), ("metrics", b"m2", 1), ("traces", b"t1", 4)]
    for kind, body, items in bodies:
        spool.append(SpoolRecord(kind, body, items))
    ((first,), _, _) = spool.take(None)
    spool.advance(first.size, 0)
    spool.close()
    with receiving() as there:
        base = there.url.removesuffix("/v1/metrics")
        assert main(["resend", str(tmp_path / "spool"), "--to", "otlp", "--url", base, "--delete"]) == 0
        assert [(path, body) for path, _, body in there.requests] == [
            ("/v1/logs", b"l1"),
            ("/v1/metrics", b"m2"),
            ("/v1/traces", b"t1"),
        ]
    assert list((tmp_path / "spool").iterdir()) == []


def curves_spooled(folder: Path) -> Path:
    """Leave requests behind with an event, a metric's packed points and a gauge's, and return the folder."""
    times, x = array("q", range(1, 6002)), array("d", range(6001))
    values = array("d", [math.nan, *range(6000)])
    points = PackedPoints(("loss",), "train", (), "", 0, times, x, values, {}, 0)
    gauge = PackedPoints(("load",), "", (), "", 0, times[:2], x[:2], values[:2], {})
    sent = [LogEvent("checkpoint", 1, 1, {"step": 3}, 1, 0, 0, 0, "s")]
    sent += [
        LogEvent(name, 1, 1, said, place, 0, 0, 0, "s.log") for place, (name, said) in enumerate(_PRIVATE.items(), 1)
    ]
    sent += [packed_event(points, 2, "s"), packed_event(gauge, 1, "s.p")]
    ((request, items),) = log_requests(sent, rank(0), lambda *_: None, lambda: None)
    spool = Spool(folder, 2**30)
    spool.append(SpoolRecord("logs", request.SerializeToString(), items))
    beside = metrics(rank(0), exponential("step", [1.0], beside=True), exponential("other", [1.0]))
    spool.append(SpoolRecord("metrics", beside.SerializeToString(), 2))
    spool.close()
    return folder


def test_packed_points_are_a_record_each_for_a_foreign_receiver(tmp_path: Path) -> None:
    """It gets every point, some thousand a request, no histogram twice and nothing private; a hub of ours gets all."""
    folder = curves_spooled(tmp_path / "spool")
    with receiving() as there:
        base = there.url.removesuffix("/v1/metrics")
        assert main(["resend", str(folder), "--to", "otlp", "--url", base, "--delete"]) == 0
        bodies = {
            path: [body for at, _, body in there.requests if at == path and body] for path, _, _ in there.requests
        }
    requests = [ExportLogsServiceRequest.FromString(body) for body in bodies["/v1/logs"]]
    records = [[each for scope in one.resource_logs[0].scope_logs for each in scope.log_records] for one in requests]
    assert max(map(len, records)) <= 5000
    found = [(record.event_name, dict(plain_attributes(record.attributes))) for some in records for record in some]
    assert [name for name, _ in found] == ["checkpoint"] + ["tachograph.metric"] * 6003
    told = [(each["metric"], each["x"], str(each["value"]), each["tachograph.seq"]) for _, each in found[1:]]
    assert told[:2] == [("loss", 0.0, "nan", 2), ("loss", 1.0, "0.0", 3)]
    assert told[6000:] == [("loss", 6000.0, "5999.0", 6002), ("load", 0.0, "nan", 1), ("load", 1.0, "0.0", 2)]
    (body,) = bodies["/v1/metrics"]
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert [metric.name for scope in resource.scope_metrics for metric in scope.metrics] == ["other"]
    assert list(folder.iterdir()) == []


def test_a_hub_of_ours_gets_packed_points_as_they_are(tmp_path: Path) -> None:
    """Also where the request that holds them is the first one that it gets: nothing is unpacked, nothing is lost.

    Sent once more, they are there no second time.
    """
    folder = curves_spooled(tmp_path / "spool")
    taken: list[str] = []

    class Keeping(Hub):
        """Keeps the names of the records that it gets, too."""

        def receive_logs(self, request: ExportLogsServiceRequest) -> Rejected:
            """Keep the names in a request, and take it."""
            scopes = [scope for one in request.resource_logs for scope in one.scope_logs]
            taken.extend(record.event_name for scope in scopes for record in scope.log_records)
            return super().receive_logs(request)

    with serving(tmp_path / "hub", kind=lambda store: Keeping(store, run="run")) as hub:
        for _ in range(2):
            assert main(["resend", str(folder), "--to", "otlp", "--url", hub.url]) == 0
            assert sorted(taken) == sorted(["checkpoint", "tachograph.points", "tachograph.points", *_PRIVATE])
            taken.clear()
    found = tachograph.runs.open("run", tmp_path / "hub")
    assert [(each.name, each.points) for each in found.metrics()] == [("load", 2), ("loss", 6001)]
    assert Counter(each.name for each in found.events()) == Counter(["checkpoint", FAILURE, LOG])
    ((_, _, failed),) = found.calls
    assert [(each.rank, each.error, each.message) for each in failed] == [(0, "ValueError", "secret")]


def _json_lines(file: Path) -> None:
    """Write what the exporter jsonl writes of an event of the program's and of all private records."""
    output = JsonLines(file, Registry())
    logged = {"epoch": _SECRET, **_PRIVATE}.items()
    events = [LogEvent(name, 1, 1, said, place, 0, 0, 0, "s") for place, (name, said) in enumerate(logged, 1)]
    output(Batch([], None, [], rank(1), 1, events))
    output.close(5)


def _exported_events(file: Path) -> None:
    """Write an exported run with the same events."""
    event = {"kind": "event", "rank": 1, "time_unix_nano": 1, "stream": "s"}
    logged = {"epoch": {}, **_PRIVATE}.items()
    lines = [{**event, "name": name, "attributes": said, "seq": place} for place, (name, said) in enumerate(logged, 1)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("write", [_json_lines, _exported_events])
def test_private_records_of_lines_leave_for_a_hub_of_ours_alone(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Another receiver gets the other events of a file that the exporter jsonl, or an export of a run, wrote."""
    file = tmp_path / "out.jsonl"
    write(file)
    assert b"secret" in file.read_bytes()
    with receiving() as there:
        base = there.url.removesuffix("/v1/metrics")
        assert main(["resend", str(file), "--to", "otlp", "--url", base]) == 0
        got = b"".join(body for _, _, body in there.requests)
    assert b"epoch" in got
    assert [name for name in _PRIVATE if name.encode() in got] == []


@pytest.mark.parametrize("write", [_json_lines, _exported_events])
def test_private_records_of_lines_arrive_at_a_hub_of_ours(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """They are in the run as they were, once, however often the file is sent."""
    file = tmp_path / "out.jsonl"
    write(file)
    with serving(tmp_path / "hub", kind=lambda store: Hub(store, run="run")) as hub:
        for _ in range(2):
            assert main(["resend", str(file), "--to", "otlp", "--url", hub.url]) == 0
    found = tachograph.runs.open("run", tmp_path / "hub")
    ((_, _, failed),) = found.calls
    assert [(each.rank, each.error, each.message) for each in failed] == [(1, "ValueError", "secret")]
    (logged,) = [each.attributes for each in found.events() if each.name == LOG]
    assert _SECRET.items() <= dict(logged).items()


def _numbered(folder: Path) -> Path:
    """Leave a hundred requests behind, each with a number, and return the folder."""
    spool = Spool(folder, 2**30)
    for number in range(100):
        spool.append(SpoolRecord("logs", b"%d" % number, 1))
    spool.close()
    return folder


def test_what_a_receiver_has_taken_is_not_sent_again(tmp_path: Path) -> None:
    """After 429, 503 and a reset only the request without an answer comes again, and the next replay sends the rest.

    The rest is what it has handed over since it last noted what has arrived: after each 64.
    """
    line = ["resend", str(_numbered(tmp_path / "spool")), "--to", "otlp", "--delete", "--timeout", "3", "--url"]
    with scripted(["takes", "busy", "takes", "reset", "away", *["takes"] * 71, *["away"] * 1000]) as there:
        assert main([*line, there.url]) == 1
    assert there.numbers == [0, 1, 2, *range(2, 73)]
    assert there.unanswered == {2}
    with scripted(["takes", "busy", "reset"]) as there:
        assert main([*line, there.url]) == 0
    assert there.numbers == [64, 65, *range(65, 100)]
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_was_refused_is_there_for_the_next_replay(tmp_path: Path) -> None:
    """A wrong path, or a wrong token, costs nothing: what a receiver has refused counts as arrived by no replay."""
    line = ["resend", str(_numbered(tmp_path / "spool")), "--to", "otlp", "--delete", "--url"]
    with scripted(["refuses"] * 100) as there:
        assert main([*line, there.url]) == 1
    with scripted() as there:
        assert main([*line, there.url]) == 0
    assert there.numbers == list(range(100))
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "to", "said"), [("lines", "console", "--to influxdb"), ("logs", "console", "--to otlp")]
)
def test_a_spool_goes_where_it_was_meant_for(
    tmp_path: Path, kind: str, to: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a spool holds is encoded for its destination: to another one it does not go, and a line says which it is.

    Files beside it do, so that the whole folder of spools can be named.
    """
    spool = Spool(tmp_path / "spool", 2**30)
    spool.append(SpoolRecord(kind, b"x", 1))
    spool.close()
    assert main(["resend", str(tmp_path / "spool"), "--to", to, "--delete"]) == 1
    assert said in capsys.readouterr().err
    json_lines(tmp_path / "spool", 0, 3)
    assert main(["resend", str(tmp_path / "spool"), "--to", to, "--delete"]) == 0
    assert [path.suffix for path in (tmp_path / "spool").iterdir()] == [".spool"]


def test_a_file_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a living process sends itself is not sent twice."""
    spool = Spool(tmp_path / "spool", 2**30)
    leave(spool, [event(1)])
    assert main(["resend", str(tmp_path / "spool"), "--to", "console"]) == 1
    assert "in use by a running process" in capsys.readouterr().err
    spool.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["missing", "--to", "console"], "No such file"),
        ([".", "--to", "console"], "no *.spool or *.jsonl files"),
        (["spool", "--to", "influxdb"], "INFLUXDB_HOST"),
        (["spool", "--to", "influxdb", "--url", "http://h:x"], "Port"),
        (["spool", "--to", "influxdb", "--url", "http://h"], "--database or INFLUXDB_DATABASE"),
        (["spool", "--to", "jsonl"], "--output"),
        (["spool", "--to", "otlp", "--url", "nonsense"], "URL"),
    ],
)
def test_wrong_usage_is_said(
    more: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with 2 and one line."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if more[0] == "." else tmp_path)
    if more[0] == "spool":
        spooled(tmp_path / "spool", 0, 1)
    assert main(["resend", *more]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert len(said.splitlines()) == 1


def _exported(path: Path, values: list[tuple[int, object]]) -> Path:
    """Write an exported run with points of these ranks and values."""
    point = {"kind": "point", "metric": "loss", "group": "g", "units": "", "execution": 0, "branch": 0}
    lines = [
        {**point, "rank": rank, "x": at, "time_unix_nano": 1_700_000_000_000_000_000 + at, "value": value}
        for at, (rank, value) in enumerate(values)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_point_says_who_recorded_it(tmp_path: Path) -> None:
    """Points of several ranks in one file arrive with the rank of each."""
    file = _exported(tmp_path / "run.jsonl", [(at % 3, float(at % 3)) for at in range(300)])
    with influxdb1(tmp_path / "data") as base:
        assert main(["resend", str(file), "--to", "influxdb", "--url", base, "--database", "tplr"]) == 0
        (series,) = influxql(base, 'SELECT "value", "dl.rank" FROM "g/loss"')
    assert [(int(value), int(rank)) for _, value, rank in series["values"]] == [(at % 3,) * 2 for at in range(300)]


def test_what_is_refused_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A point that the server refuses is counted and said; all others arrive, of its file and of those after it."""
    values: list[tuple[int, object]] = [(0, True if at in (70, 200) else 0.5) for at in range(300)]
    folder = tmp_path / "files"
    folder.mkdir()
    first = _exported(folder / "a.jsonl", values)
    second = _exported(folder / "b.jsonl", [(1, 0.5)] * 10)
    with influxdb1(tmp_path / "data") as base:
        line = [
            "resend",
            str(folder),
            "--to",
            "influxdb",
            "--url",
            base,
            "--database",
            "tplr",
            "--delete",
            "--timeout",
            "20",
        ]
        assert main(line) == 1
        (series,) = influxql(base, 'SELECT COUNT("value") FROM "g/loss"')
        assert series["values"][0][1] == 308
    said = capsys.readouterr().err
    assert f"{first}: the receiver rejected 2 field_type, everything else was sent" in said
    assert "not everything" not in said
    assert "310 events from 2 files" in said
    assert first.exists()
    assert not second.exists()


def test_what_cannot_be_encoded_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A point that line protocol has no line for is said, too, though the server never saw it."""
    (tmp_path / "spool").mkdir()
    write_json_lines(tmp_path / "spool" / "1.jsonl", [event(0), event(1, measurement="#train"), event(2)])
    with influxdb1(tmp_path / "data") as base:
        line = ["resend", str(tmp_path / "spool"), "--to", "influxdb", "--url", base, "--database", "tplr", "--delete"]
        assert main(line) == 1
        (series,) = influxql(base, 'SELECT COUNT("n") FROM "train"')
        assert series["values"][0][1] == 2
    assert "the receiver rejected 1 encoding" in capsys.readouterr().err
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_a_switched_off_sdk_hides_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OTEL_SDK_DISABLED is for programs that record: what is replayed is counted all the same."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    folder = json_lines(tmp_path / "spool", 0, 3)
    line = ["resend", str(folder), "--to", "jsonl", "--output", "/dev/full", "--delete"]
    assert main(line) == 1
    assert "rejected" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1


def test_what_a_running_process_appends_to_is_not_deleted(tmp_path: Path) -> None:
    """The file of ``start(logs="jsonl")`` can be read while it is written, and be deleted once that is done."""
    program = """
        import subprocess, sys, tachograph

        def replay(*more):
            line = [sys.executable, "-m", "tachograph", "resend", "live.jsonl", "--to", "jsonl", "--output", *more]
            return subprocess.run(line, capture_output=True, text=True)

        with tachograph.start(metrics="none", traces="none", logs="jsonl", jsonl="live.jsonl") as pipeline:
            logger = tachograph.MetricsLogger()
            logger.log("m", {}, {"x": 1})
            assert pipeline.flush()
            done = replay("deleted.jsonl", "--delete")
            assert done.returncode == 1 and "in use by a running process" in done.stderr, done.stderr
            assert replay("read.jsonl").returncode == 0
            logger.log("m", {}, {"x": 2})
        assert replay("all.jsonl", "--delete").returncode == 0
    """
    done = programs.run(tmp_path, program, INFLUXDB_HOST="")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "deleted.jsonl").exists()
    assert not (tmp_path / "live.jsonl").exists()
    assert [len(programs.events(tmp_path / name)) for name in ("read.jsonl", "all.jsonl")] == [1, 2]


def test_what_has_grown_is_not_deleted(tmp_path: Path) -> None:
    """Where the file system has no locks, a file that has grown since it was read stays."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    file = _exported(tmp_path / "run.jsonl", [(0, 0.5)] * 3)
    found = recording.RecordedFile(file, alone=True, flock=flock)
    assert len(list(found.parts())) == 3
    with file.open("a") as more:
        more.write("{}\n")
    with pytest.raises(OSError, match="grown"):
        found.remove()
    found.close()
    assert file.exists()


def test_a_file_that_cannot_be_deleted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a folder lets nothing be deleted the exit code is 1, and a line names the file; the others are sent."""
    folder = json_lines(tmp_path / "spool", 0, 3)
    json_lines(folder, 3, 6)

    def unlink(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", unlink)
    assert main(["resend", str(folder), "--to", "console", "--delete"]) == 1
    said = capsys.readouterr().err
    assert said.count("cannot be deleted: Permission denied") == 2
    assert "sent 6 events from 2 files" in said
