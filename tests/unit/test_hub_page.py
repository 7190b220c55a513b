"""The page of a node: what each process's own page would have, for all of them, at once."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

import servers
from hub_requests import START, Clock, histogram, metrics, number, only, rank, shown
from tachograph.exporters.batch import Batch
from tachograph.exporters.otlp.encoding import MetricsEncoder
from tachograph.exporters.prometheus.format import negotiate
from tachograph.exporters.prometheus.page import Page
from tachograph.hub.hub import Hub
from tachograph.identity.resource import series_labels
from tachograph.recording.registry import Registry

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
UTF8 = OPENMETRICS + ";escaping=allow-utf-8"


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands."""
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    """Lend a hub on an empty store."""
    made = Hub(tmp_path, run="run", clock=clock)
    yield made
    made.close()


def test_many_new_series_are_seen_to_before_anybody_asks(hub: Hub) -> None:
    """Where a thousand and more series are new, their page is written, clashes counted, before the first scrape."""
    clash = histogram("m0", [1, 0, 0], unit="")
    hub.receive_metrics(metrics(rank(0), *[number(f"m{place}", place) for place in range(1500)], clash))
    hub.tick()
    counted = {metric.name: metric.points for metric in hub.registry.collect()}
    assert [point[:2] for point in counted["tachograph.dropped"]] == [
        ((("destination", "prometheus"), ("reason", "name_conflict")), 1)
    ]
    _, page = hub.page(UTF8)
    assert page.count(b"\nm") == 1500


@pytest.mark.parametrize("accept", ["", OPENMETRICS, UTF8])
def test_the_same_lines_as_the_process_has_itself(hub: Hub, accept: str) -> None:
    """What a process sends to the hub is there with the lines that are on its own page."""
    registry, resource = Registry(), {**rank(3), "service.name": "train"}
    attributes: dict[str, Any] = {"layer.name": 'a"\\\n', "flag": True, "part": 0.25, "texts": ("x", "y")}
    if "utf-8" not in accept:  # there dl.role is not dl_role
        attributes["dl.role"] = "own"
    for name, kind, unit in (("loss", "gauge", "1"), ("outer.<locals>.f", "counter", "By"), ("step", "histogram", "s")):
        instrument = registry.group("train").declare(
            name,
            kind=kind,
            unit=unit,
            description=f"{name}:\n\\",
            boundaries=None,  # type: ignore[arg-type]
        )
        instrument.record(3, attributes)
        instrument.record(0.5)
    points = [metric for metric in registry.collect() if metric.scope == "train"]
    encoder = MetricsEncoder("hub", registry)
    for request, _ in encoder.messages(Batch(points, None, (), resource, START)):
        assert hub.receive_metrics(request).items == 0
    own = Page(series_labels(resource), resource, registry).render(points, None, negotiate(accept))
    content_type, page = hub.page(accept)
    assert content_type == negotiate(accept).content_type
    ours, theirs = _lines(page), _lines(own)
    assert theirs <= ours


def _lines(page: bytes) -> set[str]:
    """Return the lines, numbers as floats: OTLP's sums are floats."""
    found = set()
    for line in page.decode().splitlines():
        start, _, value = line.rpartition(" ")
        found.add(line if line.startswith("#") else f"{start} {float(value)}")
    return found


def test_exemplars(hub: Hub) -> None:
    """A bucket's newest exemplar is on the OpenMetrics page, with its trace, and on no other."""
    sent = histogram("step", [1, 2, 3], total=9.0)
    for value, when in ((0.5, 1), (1.5, 3), (1.25, 2), (9.0, 4)):
        exemplar = sent.histogram.data_points[0].exemplars.add(time_unix_nano=when * 10**9, as_double=value)
        exemplar.trace_id, exemplar.span_id = (10).to_bytes(16, "big"), (11).to_bytes(8, "big")
    hub.receive_metrics(metrics(rank(0), sent))
    ids = f'{{trace_id="{10:032x}",span_id="{11:016x}"}}'
    lines = [line.partition(',le="')[2] for line in hub.page(OPENMETRICS)[1].decode().splitlines() if " # " in line]
    expected = [f'1.0"}} 1 # {ids} 0.5 1.000', f'2.0"}} 3 # {ids} 1.5 3.000', f'+Inf"}} 6 # {ids} 9.0 4.000']
    assert [line for line in lines if line] == expected
    assert b"trace_id" not in hub.page()[1]
    hub.close()


def test_attributes_that_become_one_label(hub: Hub) -> None:
    """Attributes whose keys become the same label share it; le on a histogram makes way; empty ones are left out."""
    attributes = {"a.b": "x", "a_b": "y", "le": "z", "empty": ""}
    hub.receive_metrics(metrics(rank(0), histogram("step", [1, 0, 0], attributes=attributes)))
    (labels,) = shown(hub.page()[1], "step_seconds_count")
    assert {**dict(labels), "a_b": "x;y", "exported_le": "z"} == dict(labels)
    assert "empty" not in dict(labels)
    hub.close()


def test_an_empty_attribute_is_joined_as_on_the_page_of_a_process(hub: Hub) -> None:
    """One of two attributes that become one label may be empty, and keeps its place, as the collector has it."""
    hub.receive_metrics(metrics(rank(0), number("loss", 0.5, attributes={"a.b": "", "a_b": "y"})))
    (labels,) = shown(hub.page()[1], "loss")
    assert dict(labels)["a_b"] == ";y"
    hub.close()


def test_an_empty_attribute_does_not_hide_the_rank(hub: Hub) -> None:
    """A point's attribute that is empty is no label, and leaves the process's label of that name on the series."""
    hub.receive_metrics(metrics(rank(3), number("loss", 0.5, attributes={"dl_rank": "", "dl.role": ""})))
    (labels,) = shown(hub.page()[1], "loss")
    assert {"dl_rank": "3", "dl_role": "trainer"}.items() <= dict(labels).items()
    hub.close()


def test_conflicting_kinds(hub: Hub) -> None:
    """A name that another process has as another kind is left out and counted; the first one stays."""
    hub.receive_metrics(metrics(rank(0), number("n", 1.0)))
    hub.receive_metrics(metrics(rank(1), histogram("n", [1, 0, 0], unit="")))
    hub.page()
    _, page = hub.page()
    assert only(page, "n") == 1.0
    assert not shown(page, "n_count")
    assert only(page, "tachograph_dropped_total", reason="name_conflict") == 1
    hub.close()


def test_target_info_for_each_process(hub: Hub) -> None:
    """Each process has its line of target_info, with what is no label of its series."""
    for each in range(3):
        hub.receive_metrics(metrics(rank(each), number("loss", 0.5)))
    _, page = hub.page()
    pids = {dict(labels)["dl_rank"]: dict(labels)["process_pid"] for labels in shown(page, "target_info")}
    assert pids == {"0": "100", "1": "101", "2": "102"}
    assert page.count(b"# TYPE target_info") == 1
    assert hub.page(OPENMETRICS)[1].endswith(b"# EOF\n")
    hub.close()


def test_one_header_for_a_name(hub: Hub) -> None:
    """A name has one HELP and one TYPE, however many ranks and scopes use it."""
    for each in range(3):
        hub.receive_metrics(metrics(rank(each), number("loss", 0.5), scope=f"scope{each}"))
    _, page = hub.page()
    assert page.count(b"# TYPE loss gauge") == page.count(b"# HELP loss About loss.") == 1
    assert len(shown(page, "loss")) == 3
    hub.close()


def test_durations_across_ranks(hub: Hub, clock: Clock) -> None:
    """Least, median and longest mean of a duration across ranks, and the slowest rank, of the last seconds only."""
    for each in range(4):
        hub.receive_metrics(metrics(rank(each), histogram("step", [2, 0, 0], total=2.0 * (each + 1))))
    name = "step_by_rank_seconds"
    _, page = hub.page()
    assert [only(page, name, aggregation=each) for each in ("min", "median", "max")] == [1.0, 2.5, 4.0]
    assert only(page, "step_slowest_rank") == 3
    (labels,) = shown(page, "step_slowest_rank")
    assert labels == (("dl_role", "trainer"), ("dl_run_id", "run"), ("otel_scope_name", "train"))
    for _ in range(2):
        clock.forward(11)
        hub.tick()
    assert not shown(hub.page()[1], name)
    for each in (1, 2):
        counts, total = [4, 0, 0], 2.0 * (each + 1) + 20.0 / each
        hub.receive_metrics(metrics(rank(each), histogram("step", counts, total=total, time=clock.now)))
    _, page = hub.page()
    assert [only(page, name, aggregation=each) for each in ("min", "median", "max")] == [5.0, 7.5, 10.0]
    assert only(page, "step_slowest_rank") == 1
    hub.close()


def test_only_durations_are_compared(hub: Hub) -> None:
    """Sizes have no slowest rank, and neither has a process without a rank."""
    hub.receive_metrics(
        metrics(rank(0), histogram("size", [1, 0, 0], unit="By"), histogram("x.duration", [1, 0, 0], unit=""))
    )
    agent = {"service.instance.id": "agent", "dl.role": "agent", "dl.run.id": "run"}
    hub.receive_metrics(metrics(agent, histogram("rendezvous", [1, 0, 0])))
    _, page = hub.page()
    assert b"size_by_rank" not in page
    assert b"rendezvous_seconds_by_rank" not in page
    assert only(page, "x_duration_slowest_rank") == 0
    hub.close()


def test_own_counters(hub: Hub) -> None:
    """What the hub counts about itself is on its page without a rank, whoever counts it."""
    hub.receive_metrics(metrics(rank(0), number("loss", 0.5)))
    hub.count("tachograph.hub.refused", 2, signal="logs", status="413")
    _, page = hub.page()
    assert shown(page, "tachograph_hub_points_total") == {(("otel_scope_name", "tachograph"),): 1}
    assert only(page, "tachograph_hub_refused_total", status="413") == 2
    hub.close()


@pytest.mark.usefixtures("untraced")  # a thread that sends as fast as it can
def test_rendering_while_others_send(hub: Hub) -> None:
    """Pages that are asked for while points come are whole, and a histogram on them is never half of two states."""
    stop = threading.Event()

    def send() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            for each in range(4):
                sent = histogram("step", [count, count, 0], total=2.0 * count, time=START + count)
                hub.receive_metrics(metrics(rank(each), sent, number(f"n{count % 50}", count)))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        last = 0.0
        for _ in range(10):
            _, page = hub.page()
            hub.tick()
            for each in range(4):
                counted = shown(page, "step_seconds_count", dl_rank=str(each))
                for labels, count in counted.items():
                    assert only(page, "step_seconds_sum", **{**dict(labels), "dl_rank": str(each)}) == count
                    last = max(last, count)
        assert last > 0
    finally:
        stop.set()
        sender.join()
    hub.close()


@pytest.mark.process
@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong(hub: Hub) -> None:
    """Both generations of Prometheus's checker take the page."""
    for each in range(2):
        sent = [number("loss", 0.5), number("steps", 3, kind="counter"), histogram("step", [1, 2, 3], total=4.0)]
        hub.receive_metrics(metrics(rank(each), *sent))
    _, page = hub.page()
    for major in (2, 3):
        command = [servers.find("promtool", major), "check", "metrics"]
        checked = subprocess.run(command, input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    hub.close()


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_histogram_whose_sum_is_no_counter(hub: Hub, accept: str) -> None:
    """A sum below zero is left out of OpenMetrics with its count, so that the page of all processes can be read."""
    registry = Registry()
    registry.group("train").instrument("step.ms").record(-1)
    points = [metric for metric in registry.collect() if metric.scope == "train"]
    for request, _ in MetricsEncoder("hub", registry).messages(Batch(points, None, (), rank(0), START)):
        assert hub.receive_metrics(request).items == 0
    page = hub.page(accept)[1].decode()
    parse = parse_openmetrics if accept else parse_classic
    found = {sample.name for family in parse(page) for sample in family.samples}
    ends = {"bucket"} if accept else {"bucket", "sum", "count"}
    assert {name for name in found if "_milli" in name} - {"step_by_rank_milliseconds"} == {
        f"step_milliseconds_{end}" for end in ends
    }
