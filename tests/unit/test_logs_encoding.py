"""Events as OTLP log records: whatever an event holds, the others leave, and values are exact."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry._logs import SeverityNumber
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from examples import examples
from tachograph.exporters.log_emitter import log_record
from tachograph.exporters.otlp._message import BYTES_PER_REQUEST
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.exporters.otlp.logs import log_requests
from tachograph.recording.journal import LOG, Journal, LogEvent
from tachograph.recording.registry import Registry
from tachograph.runs.queries import EventRow
from tachograph.runs.recorded import event_of

FLOATS = st.floats(allow_nan=False) | st.just(math.nan)  # JSON knows one NaN only
DATA = st.dictionaries(
    st.text().filter(lambda key: not key.startswith("tachograph.")),  # a key of ours has our value
    st.one_of(
        *(st.text(), st.integers(), st.booleans(), FLOATS, st.lists(st.integers(-(2**70), 2**70))),
        *(st.tuples(st.text()), st.dictionaries(st.text(), st.text())),
    ),
    max_size=4,
)


def logged(*data: dict[str, Any]) -> list[LogEvent]:
    """Return an event for each mapping."""
    journal = Journal(Registry(enabled=True))
    for found in data:
        journal.append("e", time.time_ns(), found)
    return journal.drain()


def encoded(events: list[LogEvent], lost: list[int] | None = None) -> list[ExportLogsServiceRequest]:
    """Return the requests as their serialised form holds them."""
    requests = []
    for request, count in log_requests(
        events, {"service.name": "s"}, lambda n, _: (lost if lost is not None else []).append(n), lambda: None
    ):
        again = ExportLogsServiceRequest.FromString(request.SerializeToString())
        assert sum(len(records(one)) for one in [again]) == count
        requests.append(again)
    return requests


def records(request: ExportLogsServiceRequest) -> list[Any]:
    """Return the records of a request, which has one resource and one scope."""
    (resource,) = request.resource_logs
    (scope,) = resource.scope_logs
    assert scope.scope.name == "tachograph"
    assert resource.resource.attributes[0].value.string_value == "s"
    return list(scope.log_records)


def plain(value: AnyValue) -> Any:
    """Return a value as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(part) for part in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: plain(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, str(kind))


def expected(value: Any) -> Any:
    """Return what a receiver gets of a value."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [expected(part) for part in value]
    if isinstance(value, dict):
        return {expected(key): expected(part) for key, part in value.items()}
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def test_a_record_is_what_the_data_model_says() -> None:
    """Name, both times, trace context and data are in their fields, and nothing is said about severity or body."""
    journal = Journal(Registry(enabled=True))
    journal.append("torch.monitor.Stat", 77, {"loss.mean": 0.5, "ok": True, "n": 3, "phase": "eval"}, trace_id=5)
    journal.append("e", 78, {}, trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=9, trace_flags=1)
    (request,) = encoded(journal.drain())
    first, second = records(request)
    assert first.event_name == "torch.monitor.Stat"
    assert first.time_unix_nano == 77
    assert 0 <= time.time_ns() - first.observed_time_unix_nano < 60e9
    assert {pair.key: plain(pair.value) for pair in first.attributes} == {
        "loss.mean": 0.5,
        "ok": True,
        "n": 3,
        "phase": "eval",
        "tachograph.schema": 1,
        "tachograph.stream": journal.stream,
        "tachograph.seq": 1,
    }
    assert first.severity_number == 0
    assert not first.HasField("body")
    assert second.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert second.span_id.hex() == "0000000000000009"
    assert second.flags == 1


def test_a_record_of_the_programs_logging_has_severity_and_body() -> None:
    """In their own fields, here and by OpenTelemetry's API; all else stays an attribute. Read back, all is there."""
    journal = Journal(Registry(enabled=True))
    said = {"severity_number": 13, "severity_text": "WARNING", "body": "ä" * 300, "code.line.number": 7}
    journal.record(said, 77, finish=lambda found: {**found, "more": "x"}, trace_id=5, span_id=6, trace_flags=1)
    (event,) = journal.drain_records()
    (request,) = encoded([event])
    (record,) = records(request)
    assert (record.severity_number, record.severity_text, record.body.string_value) == (13, "WARNING", "ä" * 300)
    attributes = {pair.key: plain(pair.value) for pair in record.attributes}
    own = {"tachograph.schema": 1, "tachograph.stream": f"{journal.stream}.log", "tachograph.seq": 1}
    assert attributes == {"code.line.number": 7, "more": "x", **own}
    assert (record.trace_id.hex(), record.flags) == ("0" * 31 + "5", 1)
    api = log_record(event)
    assert (api.severity_number, api.severity_text, api.body) == (SeverityNumber.WARN, "WARNING", "ä" * 300)
    assert dict(api.attributes or {}) == attributes
    stored = event_of(EventRow(1, LOG, 77, 78, "tachograph", "s", 1, record.SerializeToString(), "{}"))
    assert stored.attributes == {**said, "more": "x", **own}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(DATA, min_size=1, max_size=6))
def test_every_value_arrives_exactly(data: list[dict[str, Any]]) -> None:
    """Types and bits are kept, NaN too; integers beyond 64 bits become text, what UTF-8 has no form for is replaced."""
    found = [record for request in encoded(logged(*data)) for record in records(request)]
    assert len(found) == len(data)
    for record, sent in zip(found, data, strict=True):
        pairs = [(pair.key, plain(pair.value)) for pair in record.attributes][: len(sent)]
        wanted = [(expected(key), expected(value)) for key, value in sent.items()]
        assert [(key, type(value), repr(value)) for key, value in pairs] == [
            (key, type(value), repr(value)) for key, value in wanted
        ]


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(DATA, min_size=1, max_size=4))
def test_a_json_line_holds_the_same(data: list[dict[str, Any]]) -> None:
    """A line that protobuf's own JSON parser reads back is the request that was written."""
    text, read = JsonText(lambda: None), 0
    for request in encoded(logged(*data)):
        line = text.line(request)
        json.loads(line)
        again = json_format.Parse(line.decode(), ExportLogsServiceRequest())
        assert again.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)
        read += len(list(records(again)))
    assert read == len(data)


def test_maps_and_bytes_stay_what_they_are() -> None:
    """A mapping becomes a list of keys and values, bytes stay bytes: tags and fields of a point travel as maps."""
    (request,) = encoded(logged({"tags": {"host": "a", "inner": {"n": 1}}, "data": b"\x00\xff"}))
    (record,) = records(request)
    found = {pair.key: plain(pair.value) for pair in record.attributes}
    assert found["tags"] == {"host": "a", "inner": {"n": 1}}
    assert found["data"] == b"\x00\xff"


class _Evil:
    def __str__(self) -> str:
        raise RuntimeError("no text of me")


def test_what_cannot_be_encoded_costs_its_own_event_alone() -> None:
    """One event in the middle that fails is counted; those before and after it leave."""
    lost: list[int] = []
    (request,) = encoded(logged({"a": 1}, {"a": _Evil()}, {"a": 3}), lost)
    assert [plain(record.attributes[0].value) for record in records(request)] == [1, 3]
    assert lost == [1]


@pytest.mark.parametrize("moment", [-1, 2**64, 2**70])
def test_a_time_that_otlp_cannot_hold_does_not_cost_the_event(moment: int) -> None:
    """Before 1970 is unknown (0), beyond the year 2554 the last moment that there is."""
    journal = Journal(Registry(enabled=True))
    journal.append("e", moment, {})
    (request,) = encoded(journal.drain())
    assert records(request)[0].time_unix_nano == (0 if moment < 0 else 2**64 - 1)


def test_requests_are_bounded() -> None:
    """At most 500 events and one MiB a request, in order; an event that is larger than that travels alone."""
    counts = [len(records(request)) for request in encoded(logged(*[{"i": number} for number in range(1200)]))]
    assert counts == [500, 500, 200]
    huge = "x" * (BYTES_PER_REQUEST + 1)
    large = "y" * (BYTES_PER_REQUEST // 3)
    texts = [*[{"t": large}] * 4, {"t": huge}, {"t": "z"}]
    counts = [len(records(request)) for request in encoded(logged(*texts))]
    assert counts == [2, 2, 1, 1]


def test_it_rests_between_slices() -> None:
    """Encoding pauses at least once each 8 events, so that the program can run."""
    rests: list[None] = []
    list(log_requests(logged(*[{}] * 320), {}, lambda *_: None, lambda: rests.append(None)))
    assert len(rests) >= 40
