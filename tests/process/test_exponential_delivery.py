"""Exponential histograms, from a program to its receivers: which of them gets which, over real HTTP."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from programs import run
from receivers import Receiver, receiving

OURS = [(200, {"tachograph-reads": "2"}, b"")] * 100  # answers of a hub of ours
# A slow first step, and its neighbours; what comes after the first answer leaves with the end.
PROGRAM = """
import tachograph
pipeline = tachograph.start({arguments})
for value in (230.0, 1.0):
    tachograph.put_metric("step.duration.ms", value, "train")
pipeline.flush()
tachograph.put_metric("step.duration.ms", 2.0, "train")
from tachograph.recording.registry import default
print(default.intervals.kept)
"""
OFTEN = """
import time, tachograph
pipeline = tachograph.start(interval=0.1)
tachograph.put_metric("step.duration.ms", 1.0, "train")
pipeline.flush()
for value in range(30):
    tachograph.put_metric("step.duration.ms", 1.0 + value, "train")
    time.sleep(0.05)
"""
IN_PLACE = {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "Base2_Exponential_Bucket_Histogram"}


def arrived(receiver: Receiver) -> list[list[Metric]]:
    """Return the messages of the program's histogram, a list for each request that has some."""
    found = []
    for path, headers, body in receiver.requests:
        if path.endswith("/v1/metrics"):
            packed = headers.get("Content-Encoding") == "gzip"
            request = ExportMetricsServiceRequest.FromString(gzip.decompress(body) if packed else body)
            metrics = [metric for resource in request.resource_metrics for scope in resource.scope_metrics
                       for metric in scope.metrics if metric.name == "step.duration"]  # fmt: skip
            found += [metrics] if metrics else []
    return found


def kinds(requests: list[list[Metric]]) -> list[list[str | None]]:
    """Return what each request has of it."""
    return [[metric.WhichOneof("data") for metric in metrics] for metrics in requests]


def send(folder: Path, receiver: Receiver, arguments: str = "", **more: str) -> tuple[str, str]:
    """Run the program to its end, and return what it has written to stdout and stderr."""
    url = receiver.url.removesuffix("/v1/metrics")
    more = {key: value.format(url=url) for key, value in more.items()}
    how = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_METRICS_EXPORTER": "otlp", **more}
    done = run(folder, PROGRAM.format(arguments=arguments.format(url=url)), **how)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_intervals_are_longer_than_the_collections_and_hold_every_value_once(tmp_path: Path) -> None:
    """A hub of ours samples them every ten seconds: it gets one every five, and the last one with the end."""
    with receiving(*OURS) as receiver:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url.removesuffix("/v1/metrics")}
        done = run(tmp_path, OFTEN, OTEL_METRICS_EXPORTER="otlp", **environ)
    assert done.returncode == 0, done.stderr
    requests = arrived(receiver)
    spreads = [
        point for metrics in requests for metric in metrics for point in metric.exponential_histogram.data_points
    ]
    assert len(requests) >= 6
    assert 1 <= len(spreads) <= 4
    assert sum(point.count for point in spreads) == 31
    times = [(point.start_time_unix_nano, point.time_unix_nano) for point in spreads]
    assert all(before[1] == after[0] for before, after in pairwise(times))


MANY = """
import time, tachograph
pipeline = tachograph.start(interval=0.1)
for number in range(120):
    tachograph.put_metric(f"gauge.{number}", 1.0, "train")
tachograph.put_metric("step.duration.ms", 1.0, "train")
pipeline.flush()
for value in range(30):
    tachograph.put_metric("step.duration.ms", 1.0 + value, "train")
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("answers", "fewest", "most"), [(OURS, 2, 4), ([], 6, 30)], ids=["hub", "other receiver"])
def test_where_there_are_many_series_distributions_leave_a_hub_with_their_intervals(
    tmp_path: Path, answers: list[object], fewest: int, most: int
) -> None:
    """With the first collection, those that end an interval, and the end's: nothing is lost in between."""
    with receiving(*answers) as receiver:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url.removesuffix("/v1/metrics")}
        done = run(tmp_path, MANY, OTEL_METRICS_EXPORTER="otlp", **environ)
    assert done.returncode == 0, done.stderr
    found = [metric.histogram.data_points for metrics in arrived(receiver) for metric in metrics]
    counts = [point.count for points in found for point in points]
    assert fewest <= len(set(counts)) <= most
    assert counts[-1] == 31
    assert counts == sorted(counts)


def test_a_hub_of_ours_gets_intervals_beside_once_it_has_answered(tmp_path: Path) -> None:
    """The first request asks nothing of an unknown receiver; the second has every value since the beginning."""
    with receiving(*OURS) as receiver:
        assert send(tmp_path, receiver) == ("True\n", "")
        first, last = arrived(receiver)
    assert kinds([first, last]) == [["histogram"], ["histogram", "exponential_histogram"]]
    explicit, beside = last[0].histogram.data_points[0], last[1].exponential_histogram.data_points[0]
    assert (explicit.count, beside.count, beside.min, beside.max) == (3, 3, 1.0, 230.0)
    assert beside.start_time_unix_nano == explicit.start_time_unix_nano


def test_the_hub_of_the_run_gets_them_from_the_first_request_on(tmp_path: Path) -> None:
    """Under ``tachograph run`` it is known: the slow first step is in its own interval alone."""
    with receiving(*OURS) as receiver:
        hub = {"TACHOGRAPH__HUB": "{url}", "OTEL_EXPORTER_OTLP_ENDPOINT": ""}
        assert send(tmp_path, receiver, "endpoint='{url}'", **hub) == ("True\n", "")
        first, last = arrived(receiver)
    assert kinds([first, last]) == [["histogram", "exponential_histogram"]] * 2
    one, other = first[1].exponential_histogram.data_points[0], last[1].exponential_histogram.data_points[0]
    assert (one.count, one.max, other.count, other.max) == (2, 230.0, 1, 2.0)
    assert other.start_time_unix_nano == one.time_unix_nano


def test_another_endpoint_of_a_program_under_run_is_no_hub(tmp_path: Path) -> None:
    """A collector that the program names itself gets explicit histograms alone, beside whichever hub it runs."""
    with receiving() as receiver:
        hub = {"TACHOGRAPH__HUB": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_ENDPOINT": ""}
        assert send(tmp_path, receiver, "endpoint='{url}'", **hub)[0] == "True\n"
        assert kinds(arrived(receiver)) == [["histogram"]] * 2


def test_another_receiver_gets_none_and_nothing_is_counted_for_it(tmp_path: Path) -> None:
    """Once it has answered without our header, distributions count no exponential buckets from the next look on."""
    with receiving() as receiver:
        send(tmp_path, receiver)
        assert kinds(arrived(receiver)) == [["histogram"]] * 2
        program = PROGRAM.replace("from tachograph.rec", "pipeline.flush()\nfrom tachograph.rec")
        url = receiver.url.removesuffix("/v1/metrics")
        done = run(
            tmp_path, program.format(arguments=""), OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="otlp"
        )
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_in_place_where_the_variable_says_so(tmp_path: Path, temporality: str) -> None:
    """The specification's variable has exponential histograms sent instead of explicit ones, from the first on."""
    with receiving() as receiver:
        preference = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality}
        assert send(tmp_path, receiver, **IN_PLACE, **preference) == ("True\n", "")
        first, last = arrived(receiver)
    assert kinds([first, last]) == [["exponential_histogram"]] * 2
    points = [metrics[0].exponential_histogram.data_points[0] for metrics in (first, last)]
    assert [(point.count, point.sum) for point in points] == (
        [(2, 231.0), (3, 233.0)] if temporality == "cumulative" else [(2, 231.0), (1, 2.0)]
    )
    assert [sum(point.positive.bucket_counts) for point in points] == [point.count for point in points]
    assert not any(metrics[0].metadata for metrics in (first, last))


def test_an_unknown_aggregation_is_a_warning(tmp_path: Path) -> None:
    """As the specification has it, the program starts; the default is used, and the message names what is allowed."""
    with receiving() as receiver:
        said = {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "fine_histogram"}
        _, error = send(tmp_path, receiver, **said)
        assert kinds(arrived(receiver)) == [["histogram"]] * 2
    assert "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION" in error
    assert "'fine_histogram'" in error
    assert "'base2_exponential_bucket_histogram'" in error


def test_the_prometheus_page_keeps_explicit_buckets(tmp_path: Path) -> None:
    """Whatever OTLP carries, ``/metrics`` has the buckets that the metric has."""
    program = """
    import urllib.request, tachograph
    pipeline = tachograph.start(metrics=["otlp", "prometheus"], prometheus_port=0)
    tachograph.put_metric("step.duration.ms", 230.0, "train")
    pipeline.flush()
    with urllib.request.urlopen(pipeline.metrics_url, timeout=10) as page:
        print(page.read().decode())
    """
    with receiving() as receiver:
        url = receiver.url.removesuffix("/v1/metrics")
        done = run(tmp_path, program, OTEL_EXPORTER_OTLP_ENDPOINT=url, **IN_PLACE)
        assert kinds(arrived(receiver))[0] == ["exponential_histogram"]
    assert done.returncode == 0, done.stderr
    buckets = [line for line in done.stdout.splitlines() if line.startswith("step_duration_milliseconds_bucket")]
    assert next(line for line in buckets if 'le="250"' in line).endswith(" 1")
