"""The receiver: OTLP over HTTP from any client is kept; what is none is refused, in bounded memory, with a reason."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
import tracemalloc
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from examples import examples
from hub_requests import START, metrics, number, only, rank, shown
from hubs import JSON, PROTOBUF, Answer, Serving, ask, points, request, serving
from receivers import batch, over_http, recorded
from tachograph.exporters.otlp.exporter import OtlpExporter
from tachograph.exporters.otlp.json_text import JsonText
from tachograph.hub._request import RequestLimits, decode
from tachograph.hub._series import Limits
from tachograph.hub.hub import Hub

MIB = 2**20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Return a running hub."""
    with serving(tmp_path_factory.mktemp("hub")) as found:
        yield found


def log(body: str = "hello") -> ExportLogsServiceRequest:
    """Return a request with one log record."""
    made = ExportLogsServiceRequest()
    record = made.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=time.time_ns(), event_name="e")
    record.body.string_value = body
    record.trace_id, record.span_id = bytes(range(16)), bytes(range(8))
    return made


def span() -> ExportTraceServiceRequest:
    """Return a request with one span and a link."""
    made = ExportTraceServiceRequest()
    one = made.resource_spans.add().scope_spans.add().spans.add(name="s", trace_id=b"t" * 16, span_id=b"s" * 8, kind=2)
    one.parent_span_id = b"\xff" * 8
    one.links.add(trace_id=b"l" * 16, span_id=b"k" * 8)
    return made


def post(hub: Serving, signal: str, body: bytes, content_type: str = PROTOBUF, **headers: str) -> Answer:
    """Post a body."""
    return ask(hub.url, f"/v1/{signal}", body, content_type=content_type, **headers)


def told(answer: Answer) -> str:
    """Return the reason of a refusal, from the Status in the form in which the client spoke."""
    if answer.headers["content-type"] == PROTOBUF:
        return str(Status.FromString(answer.body).message)
    assert answer.headers["content-type"] == JSON
    return str(json.loads(answer.body)["message"])


@pytest.mark.parametrize("encoding", ["", "identity", "gzip"])
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON, f"{JSON}; charset=utf-8"])
def test_both_forms_of_a_request_are_kept(hub: Serving, content_type: str, encoding: str) -> None:
    """Protobuf and JSON, compressed or not, are taken, and answered in the form in which the client spoke."""
    before = points(hub.url)
    message = request(1.0, 2.0, 3.0)
    body = message.SerializeToString() if content_type == PROTOBUF else JsonText(lambda: None).line(message)
    headers = {"Content_Encoding": encoding} if encoding else {}
    answer = post(hub, "metrics", gzip.compress(body) if encoding == "gzip" else body, content_type, **headers)
    assert (answer.status, answer.headers["content-type"]) == (200, content_type.partition(";")[0])
    assert answer.body == (b"" if content_type == PROTOBUF else b"{}")
    assert points(hub.url) == before + 3


@pytest.mark.parametrize(("signal", "message"), [("logs", log()), ("traces", span()), ("metrics", request(1))])
def test_every_signal_is_taken(hub: Serving, signal: str, message: Any) -> None:
    """Logs and traces are received as metrics are; an empty request is one, too."""
    for body in (message.SerializeToString(), b""):
        assert post(hub, signal, body).status == 200
    assert post(hub, signal, JsonText(lambda: None).line(message), JSON).status == 200


@pytest.mark.parametrize("message", [log("x"), span(), request(0.5, float("inf"))])
def test_json_says_the_same_as_protobuf(message: Any) -> None:
    """OTLP's JSON has hexadecimal identifiers, and 64-bit integers as strings: nothing is lost on the way."""
    kind = type(message)
    line = JsonText(lambda: None).line(message)
    assert decode(line, JSON, kind) == message
    assert decode(line.replace(b'{"resource', b'{"unknown":{"a":[1]},"resource', 1), JSON, kind) == message


def test_the_specifications_own_spelling_of_json_is_read() -> None:
    """Identifiers in capitals, integers as numbers, enumerations as numbers: the specification allows them."""
    text = b"""{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5B8EFFF798038103D269B633813FC60C",
      "spanId":"EEE19B7EC3C1B174","name":"I","startTimeUnixNano":1544712660000000000,"kind":2}]}]}]}"""
    (one,) = decode(text, JSON, ExportTraceServiceRequest).resource_spans[0].scope_spans[0].spans
    assert one.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert (one.span_id.hex(), one.kind, one.start_time_unix_nano) == ("eee19b7ec3c1b174", 2, 1544712660000000000)


def test_our_own_exporter_delivers(hub: Serving) -> None:
    """What tachograph exports, with gzip, arrives."""
    before = points(hub.url)
    registry = recorded()
    exporter = OtlpExporter({"metrics": over_http(f"{hub.url}/v1/metrics", compression="gzip")}, registry)
    exporter(batch(registry))
    assert exporter.flush(10)
    exporter.close(1)
    assert points(hub.url) == before + 1


@pytest.mark.parametrize("compressed", [True, False])
def test_the_official_exporter_delivers(hub: Serving, *, compressed: bool) -> None:
    """Any OpenTelemetry program can send to the hub."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    before = points(hub.url)
    compression = Compression.Gzip if compressed else Compression.NoCompression
    exporter = OTLPMetricExporter(f"{hub.url}/v1/metrics", compression=compression)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    provider.get_meter("theirs").create_counter("theirs").add(7)
    provider.shutdown()
    assert points(hub.url) > before
    assert b"theirs_total" in ask(hub.url, "/metrics").body


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "status", "why"),
    [
        (b"{}", "text/plain", {}, 415, "Content-Type must be"),
        (b"{}", "", {}, 415, "Content-Type must be"),
        (b"{}", JSON, {"Content_Encoding": "br"}, 415, "gzip or identity"),
        (b"{}", JSON, {"Content_Encoding": "gzip, gzip"}, 415, "gzip or identity"),
        (b"\xff\xff", PROTOBUF, {}, 400, "not a protobuf ExportMetricsServiceRequest"),
        (b"{", JSON, {}, 400, "not a JSON ExportMetricsServiceRequest"),
        (b"[]", JSON, {}, 400, "not a JSON"),
        (b"\xff", JSON, {}, 400, "not a JSON"),
        (b'{"resourceMetrics":[{"resource":7}]}', JSON, {}, 400, "not a JSON"),
        (b"[" * 100_000, JSON, {}, 400, "nested too deep"),
        (b'{"a":' + b"9" * 10_000 + b"}", JSON, {}, 400, "not a JSON"),
        (b'{"traceId":"xyz"}', JSON, {}, 400, "not a JSON"),
        (rb'{"\ud800":1}', JSON, {}, 400, "not a JSON"),
        (b'{"\xed\xa0\x80":1}', JSON, {}, 400, "not a JSON"),
        (rb'{"resourceMetrics":[{"\ud800":{}}]}', JSON, {}, 400, "not a JSON"),
        (rb'{"resourceMetrics":"\ud800"}', JSON, {}, 400, "not a JSON"),
        (rb'{"resourceMetrics":[{"schemaUrl":"\ud800"}]}', JSON, {}, 400, "not a JSON"),
        (b"no gzip", PROTOBUF, {"Content_Encoding": "gzip"}, 400, "not valid gzip"),
        (gzip.compress(b"", mtime=0)[:-1], PROTOBUF, {"Content_Encoding": "gzip"}, 400, "the gzip body is truncated"),
        (gzip.compress(b"", mtime=0) + b"behind", PROTOBUF, {"Content_Encoding": "gzip"}, 400, "not valid gzip"),
        (gzip.compress(b"", mtime=0) * 100, PROTOBUF, {"Content_Encoding": "gzip"}, 400, "gzip streams"),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(  # noqa: PLR0917 - pytest passes them by name
    hub: Serving, body: bytes, content_type: str, headers: dict[str, str], status: int, why: str
) -> None:
    """A malformed request is a 400, a wrong type or encoding a 415, with a Status that says what was wrong."""
    answer = post(hub, "metrics", body, content_type, **headers)
    assert answer.status == status
    assert why in told(answer)


def test_gzip_may_have_several_streams(hub: Serving) -> None:
    """RFC 1952 lets a compressed body be several streams, one after another."""
    before = points(hub.url)
    body = request(1.0, 2.0).SerializeToString()
    parts = gzip.compress(body[:10]) + gzip.compress(b"") + gzip.compress(body[10:])
    assert post(hub, "metrics", parts, Content_Encoding="gzip").status == 200
    assert points(hub.url) == before + 2


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_post_brings_data(hub: Serving, method: str) -> None:
    """Every other method is answered 405, and says which one there is."""
    answer = ask(hub.url, "/v1/metrics", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_what_is_rejected_is_told(tmp_path: Path) -> None:
    """Where the hub keeps only a part, the client learns how many points it did not take: partial success."""
    with serving(tmp_path, kind=lambda store: Hub(store, limits=Limits(series=2))) as small:
        answer = post(small, "metrics", request(1.0, 2.0, 3.0, 4.0, 5.0).SerializeToString())
        success = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        assert (answer.status, success.rejected_data_points) == (200, 3)
        assert success.error_message
        body = JsonText(lambda: None).line(request(1.0, 2.0, 3.0))
        assert json.loads(post(small, "metrics", body, JSON).body)["partialSuccess"]["rejectedDataPoints"] == "1"


def bomb(size: int) -> bytes:
    """Return ``size`` bytes of zeros, compressed a thousandfold."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush()


def test_a_gzip_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """A quarter of a gigabyte in 256 KiB is a 413 as soon as its first 20 MiB are out, and is never held as a whole."""
    body = bomb(256 * MIB)
    with serving(tmp_path) as hub:
        tracemalloc.start()
        try:
            answer = post(hub, "metrics", body, Content_Encoding="gzip")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (answer.status, told(answer)) == (413, "the body is larger than 20 MiB; send smaller batches")
        assert peak < 80 * MIB
        assert post(hub, "metrics", body, JSON, Content_Encoding="gzip").status == 413
        assert points(hub.url) == 0


def test_an_oversized_body_is_refused_before_it_is_read(hub: Serving) -> None:
    """A length beyond 16 MiB is a 413 at once; one that is not said ends at 16 MiB, however long it goes on."""
    connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=10)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("Content-Type", PROTOBUF)
    connection.putheader("Content-Length", str(17 * MIB))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=10) as endless:
        head = [
            "POST /v1/metrics HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {PROTOBUF}",
            "Transfer-Encoding: chunked",
        ]
        endless.sendall("\r\n".join([*head, "", ""]).encode())
        for _ in range(18):
            endless.sendall(b"100000\r\n" + bytes(MIB) + b"\r\n")
        assert endless.recv(4096).startswith(b"HTTP/1.1 413 ")  # while the body still goes on


def test_what_does_not_arrive_in_time_is_given_up(tmp_path: Path) -> None:
    """A client that stops in the middle of a body holds nothing for longer than the limit: 408."""
    with serving(tmp_path, limits=RequestLimits(seconds=0.2)) as hub:
        connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=10)
        connection.putrequest("POST", "/v1/metrics")
        connection.putheader("Content-Type", PROTOBUF)
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"abc")
        assert connection.getresponse().status == 408
        connection.close()
        assert points(hub.url) == 0


def test_too_much_at_once_is_put_off(tmp_path: Path) -> None:
    """Beyond what may be under way at once, a request is answered 503 with Retry-After, and taken later."""
    body = request(1.0).SerializeToString()
    with serving(tmp_path, limits=RequestLimits(under_way=len(body), seconds=5)) as hub:
        slow = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=10)
        slow.putrequest("POST", "/v1/metrics")
        slow.putheader("Content-Type", PROTOBUF)
        slow.putheader("Content-Length", str(len(body)))
        slow.endheaders(body[:5])
        until = time.monotonic() + 5
        while (answer := post(hub, "metrics", body)).status == 200 and time.monotonic() < until:
            time.sleep(0.02)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert told(answer) == "too many requests at once"
        slow.send(body[5:])
        assert slow.getresponse().status == 200
        slow.close()
        assert post(hub, "metrics", body).status == 200


def test_all_bodies_together_are_bounded(tmp_path: Path) -> None:
    """The bytes of all bodies under way have a limit; what would go beyond it is put off, and nothing leaks."""
    with serving(tmp_path, limits=RequestLimits(under_way=1000)) as hub:
        for _ in range(3):
            assert post(hub, "metrics", bytes(1500)).status == 503
            assert post(hub, "metrics", request(1.0).SerializeToString()).status == 200


class FullDisk(Hub):
    """A hub whose store takes nothing."""

    def receive_logs(self, request: ExportLogsServiceRequest) -> int:  # noqa: ARG002 - the signature is given
        """Fail as SQLite does."""
        raise OSError(28, "No space left on device")


def test_what_cannot_be_kept_is_to_be_sent_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the store fails, the client is told to come back, it is logged once, and the hub lives on."""
    with serving(tmp_path, kind=FullDisk) as hub:
        for _ in range(2):
            answer = post(hub, "logs", log().SerializeToString())
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert post(hub, "metrics", request(1.0).SerializeToString()).status == 200
        page = ask(hub.url, "/metrics").body.decode()
    assert len([record for record in caplog.records if "cannot store" in record.message]) == 1
    assert 'tachograph_hub_failed_total{otel_scope_name="tachograph",signal="logs"} 2' in page


def test_refusals_are_on_the_page(hub: Serving) -> None:
    """What was refused is counted by signal and status."""
    post(hub, "traces", b"{", JSON)
    assert (
        b'tachograph_hub_refused_total{otel_scope_name="tachograph",signal="traces",status="400"}'
        in ask(hub.url, "/metrics").body
    )


def test_many_clients_lose_nothing(hub: Serving) -> None:
    """Sixteen clients at once, on connections that they keep: every point is counted once."""
    before = points(hub.url)
    body = gzip.compress(request(*range(20)).SerializeToString())
    failures: list[int] = []

    def client() -> None:
        connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=30)
        for _ in range(10):
            connection.request("POST", "/v1/metrics", body, {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                failures.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert points(hub.url) == before + 16 * 10 * 20


VALID = {"metrics": request(1.0, -2.5, 1e300), "logs": log(), "traces": span()}
Mutation = list[tuple[int, int]]


def mutated(body: bytes, changes: Mutation, cut: int) -> bytes:
    """Return a body with some bytes changed and some cut off."""
    found = bytearray(body)
    for where, what in changes:
        found[where % len(found)] = what
    return bytes(found[: len(found) - cut % len(found)])


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    signal=st.sampled_from(sorted(VALID)),
    form=st.sampled_from([PROTOBUF, JSON]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=12),
    cut=st.integers(0, 2**10) | st.just(0),
    packed=st.sampled_from(["no", "before", "after"]),
)
def test_no_mutation_of_a_request_breaks_the_hub(  # noqa: PLR0917 - Hypothesis passes them by name
    hub: Serving, signal: str, form: str, changes: Mutation, cut: int, packed: str
) -> None:
    """Whatever bytes of a valid request are changed or missing, the answer is 200 or 400, and the hub answers on."""
    message = VALID[signal]
    body = message.SerializeToString() if form == PROTOBUF else JsonText(lambda: None).line(message)
    if packed == "before":
        body = mutated(gzip.compress(body, mtime=0), changes, cut)
    else:
        body = mutated(body, changes, cut)
        body = gzip.compress(body, mtime=0) if packed == "after" else body
    headers = {} if packed == "no" else {"Content_Encoding": "gzip"}
    assert post(hub, signal, body, form, **headers).status in (200, 400)


Json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), signal=st.sampled_from(sorted(VALID)))
def test_no_shape_of_json_breaks_the_hub(hub: Serving, data: st.DataObject, signal: str) -> None:
    """Whatever stands in the place of any one value of a valid request, the answer is 200 or 400."""
    found = MessageToDict(VALID[signal])
    places = [*_places(found)]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(Json)
    assert post(hub, signal, json.dumps(found).encode(), JSON).status in (200, 400)


@pytest.mark.parametrize("number", ["1e99999", "-1e99999", "1e19", "-1", "1.5", '"1e99999"', "9" * 5000])
def test_a_number_that_no_integer_holds_is_refused(hub: Serving, number: str) -> None:
    """Where an integer is to be, a number that is none, or beyond its bits, is a 400."""
    body = '{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"severityNumber":NUMBER,"timeUnixNano":NUMBER}]}]}]}'
    assert post(hub, "logs", body.replace("NUMBER", number).encode(), JSON).status == 400


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield found, key
        if isinstance(value, dict | list):
            yield from _places(value)


def test_a_large_body_arrives(tmp_path: Path) -> None:
    """Of a large body the hub takes every point once, deltas and all attributes included."""
    sent = metrics(rank(0), number("level", 1.0), number("sent", 1, kind="counter", delta=True, start=START - 1))
    level, total = sent.resource_metrics[0].scope_metrics[0].metrics
    for place in range(1, 4_000):
        point = level.gauge.data_points.add(time_unix_nano=START, as_double=place)
        point.attributes.add(key="place").value.int_value = place
        end = START + place
        total.sum.data_points.add(start_time_unix_nano=end - 1, time_unix_nano=end, as_int=1)
    body = sent.SerializeToString()
    with serving(tmp_path) as hub:
        answer = ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF)
        assert (answer.status, answer.body) == (200, b"")
        page = ask(hub.url, "/metrics").body
        assert sorted(shown(page, "level").values()) == [1, *range(1, 4_000)]
        assert only(page, "sent_total") == 4_000


def test_it_answers_after_all_that(hub: Serving) -> None:
    """After everything above, the hub serves its page and is well."""
    assert json.loads(ask(hub.url, "/healthz").body)["status"] == "ok"
    with urllib.request.urlopen(f"{hub.url}/metrics", timeout=10) as page:
        assert b"tachograph_hub_points" in page.read()


def test_noise_is_no_news(hub: Serving, capfd: pytest.CaptureFixture[str]) -> None:
    """What is no HTTP at all is turned away without a word on stderr."""
    noise = bytes(range(256)) * 8
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=5) as connection:
        connection.sendall(noise + b"\r\n\r\n")
        while connection.recv(4096):
            pass
    assert ask(hub.url, "/healthz").status == 200
    assert capfd.readouterr().err == ""


def test_the_request_class_is_told_apart(hub: Serving) -> None:
    """A request of another signal is not mistaken for one of this: what it holds is not there afterwards."""
    before = points(hub.url)
    assert post(hub, "logs", request(1.0, 2.0).SerializeToString()).status in (200, 400)
    assert points(hub.url) == before
    assert isinstance(decode(b"", PROTOBUF, ExportMetricsServiceRequest), ExportMetricsServiceRequest)


def test_a_client_that_goes_away_is_no_error(hub: Serving, capfd: pytest.CaptureFixture[str]) -> None:
    """A rank that is killed in the middle of a request leaves nothing behind: what it sent of it is not kept."""
    before = points(hub.url)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=5) as connection:
            head = ["POST /v1/metrics HTTP/1.1", "Host: localhost", f"Content-Type: {PROTOBUF}", "Content-Length: 999"]
            connection.sendall("\r\n".join([*head, "", ""]).encode() + request(1.0).SerializeToString())
    assert points(hub.url) == before
    assert capfd.readouterr().err == ""
