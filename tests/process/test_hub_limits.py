"""What is too large or too much for the hub: it is left out, counted, and the sender is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from prometheus_client.parser import text_string_to_metric_families

from hub_requests import Clock, histogram, logs, metrics, number, only, rank, shown
from hubs import PROTOBUF, ask, serving
from tachograph.hub._series import Limits
from tachograph.hub.hub import Hub

MIB = 2**20


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (number("n" * 1025, 1), "illegal_name"),
        (number("n", 1, unit="u" * 1025), "illegal_name"),
        (number("n", 1, attributes={"k" * 1025: "v"}), "illegal_name"),
        (histogram("h", [1] * 1002, bounds=[float(i) for i in range(1001)]), "too_large"),
    ],
)
def test_names_and_bounds_have_limits(tmp_path: Path, sent: Metric, reason: str) -> None:
    """What is just too long is rejected: the sender is told which and why, the page counts it, the rest is taken."""
    with serving(tmp_path) as hub:
        body = metrics(rank(0), number("good", 1), sent).SerializeToString()
        answer = ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF)
        success = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        assert success.rejected_data_points == 1
        assert success.error_message.startswith(f"1 {reason}, first of metric ")
        page = ask(hub.url, "/metrics").body
        assert only(page, "good") == 1
        assert only(page, "tachograph_dropped_total", reason=reason, destination="hub") == 1
        assert len(page) < MIB


def test_at_the_limits_all_is_well(tmp_path: Path) -> None:
    """Names of 1,024 characters and histograms of 1,000 bounds are shown."""
    hub = Hub(tmp_path)
    name = "n" * 1024
    bounds = [float(i) for i in range(1000)]
    sent = [number(name, 1, attributes={"k" * 1024: "v"}), histogram("h", [1] * 1001, bounds=bounds, unit="")]
    assert not hub.receive_metrics(metrics(rank(0), *sent)).items
    assert only(hub.page()[1], name) == 1
    assert len(shown(hub.page()[1], "h_bucket")) == 1001
    hub.close()


def test_a_resource_has_a_limit(tmp_path: Path) -> None:
    """All of a resource of more than 64 KiB is rejected, points as records, and the others of the request are taken."""
    with serving(tmp_path) as hub:
        large = {**rank(1), "big": "x" * 65536}
        both = metrics(rank(0), number("loss", 1))
        both.MergeFrom(metrics(large, number("loss", 1), number("acc", 1)))
        answer = ask(hub.url, "/v1/metrics", both.SerializeToString(), content_type=PROTOBUF)
        success = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        assert success.rejected_data_points == 2
        records = logs(large, ("e", {}), ("e", {})).SerializeToString()
        answer = ask(hub.url, "/v1/logs", records, content_type=PROTOBUF)
        assert ExportLogsServiceResponse.FromString(answer.body).partial_success.rejected_log_records == 2
        assert len(shown(ask(hub.url, "/metrics").body, "loss")) == 1


def test_maps_in_maps_are_one_json_text(tmp_path: Path) -> None:
    """An attribute of maps in maps costs its length: JSON texts in JSON texts are twice as long at each depth.

    At 25 maps, of 300 bytes, a hub had 300 MB more; protobuf takes 31.
    """
    sent = number("n", 1)
    wanted: Any = ["x", '"']
    into = sent.gauge.data_points[0].attributes.add(key="deep").value
    for _ in range(20):
        into = into.kvlist_value.values.add(key="a").value
        wanted = {"a": wanted}
    for each in ("x", '"'):
        into.array_value.values.add().string_value = each
    with serving(tmp_path) as hub:
        ask(hub.url, "/v1/metrics", metrics(rank(0), sent).SerializeToString(), content_type=PROTOBUF)
        ((labels, _),) = shown(ask(hub.url, "/metrics").body, "n").items()
    assert json.loads(dict(labels)["deep"]) == wanted


def test_the_oldest_processes_make_room(tmp_path: Path) -> None:
    """Where there are too many processes those that ended make room, the oldest first, once they are in the file."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock, limits=Limits(processes=16))
    for index in range(16):
        hub.receive_metrics(metrics(rank(index), number("loss", index)))
        hub.receive_logs(logs(rank(index), ("tachograph.process.start", {}), stream=f"s{index}"))
        if index in (3, 5):
            hub.receive_logs(logs(rank(index), ("tachograph.process.end", {}), stream=f"s{index}", first=2))
        clock.forward(0.1)
    assert hub.receive_metrics(metrics(rank(16), number("loss", 16))).items == 1  # nothing of them is saved yet
    clock.forward(6)
    hub.tick()
    for index in (0, 1, 2, 4, *range(6, 16)):
        hub.receive_metrics(metrics(rank(index), number("loss", index)))
    hub.tick()
    left = {str(index) for index in range(16)}
    for index, gone in ((16, "3"), (17, "5")):
        clock.forward(1)
        assert not hub.receive_metrics(metrics(rank(index), number("loss", index))).items
        left = (left | {str(index)}) - {gone}
        assert {dict(labels)["dl_rank"] for labels in shown(hub.page()[1], "loss")} == left
    clock.forward(1)
    assert hub.receive_metrics(metrics(rank(18), number("loss", 18))).items == 1
    clock.forward(10)
    hub.tick()
    assert only(hub.page()[1], "tachograph_hub_processes_dismissed_total") == 2
    hub.close()


def test_more_processes_than_there_is_room_for(tmp_path: Path) -> None:
    """Where nobody has ended, new processes are turned away, and told so; those that are there go on."""
    hub = Hub(tmp_path, run="run", limits=Limits(processes=3))
    for index in range(3):
        assert not hub.receive_metrics(metrics(rank(index), number("loss", index))).items
    rejected = hub.receive_metrics(metrics(rank(3), number("loss", 3), number("acc", 3)))
    assert rejected.items == 2
    assert "2 cardinality, first of metric 'loss'" in rejected.why
    assert not hub.receive_metrics(metrics(rank(0), number("loss", 9))).items
    assert len(shown(hub.page()[1], "loss")) == 3
    hub.close()


def test_memory_has_a_limit(tmp_path: Path) -> None:
    """Series whose text or buckets take too much are rejected; what goes makes room again."""
    clock = Clock()
    hub = Hub(tmp_path, run="run", clock=clock, limits=Limits(memory=MIB))
    texts = [number("n", 1, attributes={"i": str(i), "text": "x" * 10_000}) for i in range(100)]
    rejected = hub.receive_metrics(metrics(rank(0), *texts)).items
    assert 80 < rejected < 100
    clock.forward(400)
    hub.tick()
    bounds = [float(i) for i in range(1000)]
    wide = [histogram("h", [1] * 1001, bounds=bounds, attributes={"i": i}) for i in range(10)]
    assert 0 < hub.receive_metrics(metrics(rank(1), *wide)).items < 10
    hub.close()


def test_the_page_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A page ends at its limit with a whole line, in each format; what is left out is counted, and logged once."""
    hub = Hub(tmp_path, run="run", limits=Limits(page=100_000))
    sent = [number("n", 1, attributes={"i": str(i), "text": "x" * 500}) for i in range(1000)]
    hub.receive_metrics(metrics(rank(0), *sent))
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        _, page = hub.page(accept)
        assert 90_000 < len(page) < 100_100
        assert page.endswith(b"# EOF\n" if accept else b" 1\n")
    assert 100 < len(shown(hub.page()[1], "n")) < 200
    assert len([record for record in caplog.records if "page is cut off" in record.message]) == 1
    counted = {point.value for each in hub.registry.collect() if "omitted" in each.name for point in each.points}
    assert sum(counted) > 2400
    assert list(text_string_to_metric_families(hub.page()[1].decode()))
    hub.close()
