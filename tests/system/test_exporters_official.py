"""The official exporters against real servers, and how they deliver."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from collectors import running
from programs import environment, run, write
from receivers import dropped, receiving, recorded
from servers import free_port, prometheus
from tachograph.exporters.batch import Batch
from tachograph.pipeline.destinations import given
from tachograph.recording.registry import Registry
from test_exporters_alike import NAMES, PAGE, PULLED, RECORDING, REQUESTS


def of_prometheus(base: str, query: str) -> dict[str, float]:
    """Return the values that a query gives in a Prometheus server, by job."""
    with urllib.request.urlopen(f"{base}/api/v1/query?query={urllib.parse.quote(query)}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return {series["metric"]["job"]: float(series["value"][1]) for series in found}


@pytest.mark.parametrize("major", [3, 2])
def test_a_real_prometheus_takes_both_pages(tmp_path: Path, major: int) -> None:
    """Scraped by Prometheus 3 and 2, the official reader's page gives the values that ours gives."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, str(write(tmp_path, RECORDING + PULLED)), str(port)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        ours, said = program.stdout.readline().split("/")[2], program.stdout.readline()
        assert said == "serving\n"
        targets = {"ours": ours, "theirs": f"127.0.0.1:{port}"}
        jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
        (tmp_path / "prometheus.yml").write_text(
            json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
        )
        with prometheus(tmp_path / "prometheus.yml", major=major) as base:
            done = "{__name__=~'done.success_total', x=''}"  # with its point, where the server takes UTF-8, from ours
            queries = ("loss", done, "load_seconds_count{n='1'}", "took_seconds_sum", "huge")
            until = time.monotonic() + 30
            while time.monotonic() < until and len(of_prometheus(base, "loss")) < 2:
                time.sleep(0.2)
            assert of_prometheus(base, "up") == {"ours": 1, "theirs": 1}
            for query in queries:
                found = of_prometheus(base, query)
                assert set(found) == {"ours", "theirs"}, query
                assert found["ours"] == found["theirs"], query
            assert set(of_prometheus(base, "{__name__='done.success_total', x=''}")) == (
                {"ours"} if major == 3 else set()
            )
        program.communicate("\n", timeout=60)


@pytest.mark.parametrize("protocol", list(NAMES))
def test_a_real_collector_takes_what_theirs_sends(tmp_path: Path, protocol: str) -> None:
    """The collector's Prometheus page has the same values of both, and its file the span and the event of theirs."""
    with running(tmp_path) as collector:
        port = collector.grpc if protocol == "grpc" else collector.http
        for service, exporter in (("ours", "otlp"), ("theirs", NAMES[protocol])):
            done = run(
                tmp_path,
                RECORDING + "tachograph.start()\nrecord()\n",
                OTEL_SERVICE_NAME=service,
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
                OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
                **{f"OTEL_{signal.upper()}_EXPORTER": exporter for signal in REQUESTS},
            )
            assert (done.returncode, done.stderr) == (0, "")
        until = time.monotonic() + 20
        while "loss" not in collector.values("theirs") and time.monotonic() < until:
            time.sleep(0.2)
        found = {service: collector.values(service) for service in ("ours", "theirs")}
        for name in ("loss", "inf", "huge", "int", "done_success_total", "load_seconds_sum", "function_calls_total"):
            assert found["theirs"][name] == found["ours"][name], name
        until = time.monotonic() + 20
        wanted = ('"name":"outer"', '.step"', '"eventName":"e"')
        while time.monotonic() < until and not _has(collector.file, wanted):
            time.sleep(0.2)
        assert _has(collector.file, wanted)


def _has(file: Path, wanted: tuple[str, ...]) -> bool:
    """Tell whether the lines of the service ``theirs`` hold all of it."""
    lines = [line for line in file.read_text().splitlines() if '"theirs"' in line] if file.exists() else []
    return all(any(text in line for line in lines) for text in wanted)


def exporter_of(protocol: str, url: str, **more: Any) -> Any:
    """Return the official exporter of metrics."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

        return Grpc(endpoint=url, insecure=True, **more)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

    return Http(endpoint=url, **more)


def behind(exporter: Any, registry: Registry, timeout: float = 15) -> bool:
    """Send one batch through an exporter, and tell whether it arrived."""
    route = given(exporter, registry, metrics=True)
    route.destination(Batch([m for m in registry.collect() if m.scope == "g"], None, [], {}, time.time_ns()))
    arrived = route.destination.flush(timeout)
    route.destination.close(1)
    return arrived


def test_a_part_that_was_rejected_is_not_counted_by_theirs() -> None:
    """The official exporter does not read a partial success, as the page says; ours counts it."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 1
    with receiving((200, {}, answer.SerializeToString())) as receiver:
        registry = recorded()
        assert behind(exporter_of("http/protobuf", receiver.url), registry)
    assert dropped(registry) == {}
    row = "partial success | counted by Tachograph, ignored by the official exporters"
    assert row in PAGE.read_text(encoding="utf-8")


def test_a_receiver_that_is_busy_is_tried_again_by_theirs() -> None:
    """After 503 the same request comes again, once; nothing is counted as lost."""
    with receiving((503, {}, b"")) as receiver:
        registry = recorded()
        assert behind(exporter_of("http/protobuf", receiver.url), registry)
        bodies = [body for _, _, body in receiver.requests]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert dropped(registry) == {}


@pytest.mark.parametrize("protocol", list(NAMES))
def test_their_time_out_is_theirs(protocol: str) -> None:
    """A receiver that is away costs their own time-out, and random numbers; each point is counted as rejected."""
    url = "http://127.0.0.1:9/v1/metrics" if protocol != "grpc" else "http://127.0.0.1:9"
    registry, drawn = recorded(), random.getstate()
    before = time.monotonic()
    assert not behind(exporter_of(protocol, url, timeout=1), registry)
    assert time.monotonic() - before < 6
    assert random.getstate() != drawn, "docs/design/exporters-compared.md says that a retry of theirs draws"
    assert dropped(registry) == {"rejected": 1}


def test_their_exports_draw_random_numbers() -> None:
    """The official exporter over HTTP moves Python's random state with each export, as the page warns."""
    with receiving() as receiver:
        registry = recorded()
        before = random.getstate()
        assert behind(lambda _batch: None, registry)
        assert random.getstate() == before
        assert behind(exporter_of("http/protobuf", receiver.url), registry)
        moved = random.getstate() != before
    assert moved == ("`otlp_proto_http` advances it with each export" in PAGE.read_text(encoding="utf-8"))
