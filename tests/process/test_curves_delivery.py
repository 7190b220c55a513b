"""Curves of gauges: to our own hub they go packed, elsewhere only where that is asked for."""

from __future__ import annotations

import gzip
import math
import re
import struct
import time
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from hubs import serving
from programs import run
from receivers import Receiver, receiving, silent
from tachograph.hub.forwarding import Forwarding
from tachograph.recording.registry import Registry

# Two hundred values with a spike, and three of another series; then the end, at once.
PROGRAM = """
import tachograph
{before}
for number in range(200):
    tachograph.put_metric("loss", 50.0 if number == 120 else 1.0, "train")
for value in (1, float("nan"), 3):
    tachograph.put_metric("rate", value, "train", attributes={{"gpu": 0}})
{after}
"""
OURS = [(200, {"tachograph-reads": "2"}, b"")] * 100  # answers of a hub of ours
START = PROGRAM.format(before="tachograph.start()", after="")


def records(receiver: Receiver, name: str) -> list[LogRecord]:
    """Return the log records of a name that arrived."""
    found = []
    for path, headers, body in receiver.requests:
        if path.endswith("/v1/logs"):
            packed = headers.get("Content-Encoding") == "gzip"
            request = ExportLogsServiceRequest.FromString(gzip.decompress(body) if packed else body)
            found += [record for resource in request.resource_logs for scope in resource.scope_logs
                      for record in scope.log_records if record.event_name == name]  # fmt: skip
    return found


def attributes(record: LogRecord) -> dict[str, Any]:
    """Return a record's attributes: maps as dictionaries, arrays as lists."""
    return {each.key: _plain(each.value) for each in record.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: _plain(each.value) for each in value.kvlist_value.values}
    return getattr(value, kind)


def columns(record: LogRecord) -> dict[str, Any]:
    """Return a packed record with its columns as tuples."""
    found = attributes(record)
    codes = {"time": "q", "count": "q", "nonfinite": "q"}
    return {
        key: struct.unpack(f"<{len(told) // 8}{codes.get(key, 'd')}", told) if isinstance(told, bytes) else told
        for key, told in found.items()
    }


def send(folder: Path, url: str, program: str = START, **more: str) -> str:
    """Run a program whose telemetry goes to a URL, and return what it has written to stderr."""
    done = run(folder, program, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="otlp", **more)
    assert done.returncode == 0, done.stderr
    return done.stderr


def base(receiver: Receiver) -> str:
    """Return the URL that signals' paths are appended to."""
    return receiver.url.removesuffix("/v1/metrics")


def test_a_hub_of_ours_gets_them_packed(tmp_path: Path) -> None:
    """Every value is there with its number as x and its time, a record a series; numbers are those of points."""
    with receiving(*OURS) as receiver:
        began = time.time_ns()
        assert send(tmp_path, base(receiver)) == ""
        loss, rate = map(columns, records(receiver, "tachograph.points"))
    assert loss["metric"] == ["loss"]
    assert (loss["group"], loss["n"], loss["x"]) == ("train", 200, tuple(map(float, range(200))))
    assert loss["value"] == tuple(50.0 if number == 120 else 1.0 for number in range(200))
    assert list(loss["time"]) == sorted(loss["time"])
    assert began < loss["time"][0] <= loss["time"][-1] < time.time_ns()
    assert "count" not in loss
    assert rate["attributes"] == {"gpu": 0}
    assert rate["value"][::2] == (1.0, 3.0)
    assert math.isnan(rate["value"][1])
    assert (loss["tachograph.schema"], loss["tachograph.seq"], rate["tachograph.seq"]) == (1, 1, 201)
    assert loss["tachograph.stream"] == rate["tachograph.stream"]


def test_another_receiver_gets_none(tmp_path: Path) -> None:
    """Millions of records a second would be no present: events arrive, and curves stay at home."""
    with receiving() as receiver:
        assert send(tmp_path, base(receiver)) == ""
        assert records(receiver, "tachograph.points") == records(receiver, "tachograph.metric") == []
        assert {path for path, _, _ in receiver.requests} == {"/v1/metrics"}


def test_another_receiver_gets_a_record_a_point_where_that_is_asked_for(tmp_path: Path) -> None:
    """TACHOGRAPH_CURVES=all: the form of Metric's points, which every reader of them knows."""
    with receiving() as receiver:
        assert send(tmp_path, base(receiver), TACHOGRAPH_CURVES="all") == ""
        assert records(receiver, "tachograph.points") == []
        found = [attributes(record) for record in records(receiver, "tachograph.metric")]
    assert [each["value"] for each in found if each["metric"] == "loss"][119:122] == [1.0, 50.0, 1.0]
    assert [each["x"] for each in found if each["metric"] == "rate"] == [0.0, 1.0, 2.0]
    assert {each["group"] for each in found} == {"train"}
    assert [each["tachograph.seq"] for each in found] == list(range(1, 204))
    assert found[-1]["attributes"] == {"gpu": 0}


def test_a_wrong_choice_is_refused(tmp_path: Path) -> None:
    """An unknown TACHOGRAPH_CURVES is a ValueError at start() that names it and what it may be."""
    done = run(tmp_path, START, TACHOGRAPH_CURVES="everywhere")
    assert done.returncode == 1
    assert "ValueError: TACHOGRAPH_CURVES" in done.stderr
    assert "everywhere" in done.stderr
    assert "hub" in done.stderr.splitlines()[-1]


def test_values_from_before_start_are_kept(tmp_path: Path) -> None:
    """What was recorded before start() leaves with the rest; flush() has it delivered."""
    program = PROGRAM.format(before="", after="assert tachograph.start().flush(20)")
    with receiving(*OURS) as receiver:
        assert send(tmp_path, base(receiver), program) == ""
        assert [columns(record)["n"] for record in records(receiver, "tachograph.points")] == [200, 3]


def test_a_receiver_that_never_answers_holds_up_no_end(tmp_path: Path) -> None:
    """Nobody knows whether it is a hub of ours: the end takes its second, with one line of lost points, all counted."""
    with silent() as port:
        began = time.monotonic()
        done = run(
            tmp_path, START, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_METRICS_EXPORTER="otlp"
        )
        assert done.returncode == 0
        assert "Traceback" not in done.stderr
        said = re.search(r"journal: lost (\d+) events", done.stderr)
        assert said is not None, done.stderr
        assert int(said[1]) >= 203, done.stderr
    assert time.monotonic() - began < 15


def test_a_forked_child_sends_its_own(tmp_path: Path) -> None:
    """A child that records counts from 0, in a stream of its own, and repeats nothing of its parent's."""
    program = PROGRAM.format(
        before="import os\ntachograph.start()",
        after="""
if os.fork() == 0:
    for _ in range(5):
        tachograph.put_metric("loss", 7.0, "train")
    raise SystemExit
os.wait()
""",
    )
    with receiving(*OURS) as receiver:
        send(tmp_path, base(receiver), program, TACHOGRAPH_HELPERS="true")
        found = [columns(record) for record in records(receiver, "tachograph.points")]
    of_child = [each for each in found if each["value"] == (7.0,) * 5]
    assert [(each["metric"], each["x"], each["tachograph.seq"]) for each in of_child] == [
        (["loss"], (0.0, 1.0, 2.0, 3.0, 4.0), 1)
    ]
    assert sorted(each["n"] for each in found) == [3, 5, 200]
    assert len({each["tachograph.stream"] for each in found}) == 2


def test_a_hub_passes_them_on_to_a_hub_alone(tmp_path: Path) -> None:
    """What a node's hub forwards has packed points only where the receiver says that it reads them."""
    for answers in (True, False):
        headers = {"tachograph-reads": "2"} if answers else {}
        with receiving(*[(200, headers, b"")] * 100) as receiver:
            forwarding = Forwarding(base(receiver), Registry(), {})
            with serving(tmp_path / f"node{answers}", forwarding=forwarding) as node:
                send(tmp_path, node.url)
                send(tmp_path, node.url)
                assert forwarding.flush(20)
            forwarding.close(5)
            assert bool(records(receiver, "tachograph.points")) == answers
            assert sum(path == "/v1/metrics" for path, _, _ in receiver.requests) >= 2
