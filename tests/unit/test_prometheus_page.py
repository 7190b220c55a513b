"""The page: what was recorded can be read from it in every text format, exactly, and no line spoils the others."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

import servers
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.page import Page, Renderer
from tachograph.exporters.prometheus.sliced_text import SlicedText
from tachograph.recording.accumulators import Distribution
from tachograph.recording.gil_yield import SLICE
from tachograph.recording.naming import Kind, prometheus_label, prometheus_name
from tachograph.recording.points import Attributes, MetricPoints, NumberPoint
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

CLASSIC = Format()
CLASSIC_UTF8 = Format(version="1.0.0", utf8=True)
OPENMETRICS = Format(openmetrics=True, version="1.0.0")
OPENMETRICS_UTF8 = Format(openmetrics=True, version="1.0.0", utf8=True)
FORMATS = (CLASSIC, CLASSIC_UTF8, OPENMETRICS, OPENMETRICS_UTF8)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(registry: Registry, form: Format = CLASSIC, *, labels: dict[str, str] | None = None) -> str:
    """Return a registry's page without ``target_info``, unless there are labels."""
    return Page(labels or {}, {}, registry).render(registry.collect(), None, form).decode()


def parsed(text: str, form: Format) -> list[Metric]:
    """Return what prometheus_client's parser reads."""
    return list((parse_openmetrics if form.openmetrics else parse_classic)(text))


def series(text: str, form: Format) -> Series:
    """Return the value of every series; each stands there once."""
    found: Series = {}
    for family in parsed(text, form):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = float(sample.value)
    return found


def declare(registry: Registry, name: str, kind: Kind, *, group: str = "train", unit: str = "", **more: object) -> None:
    """Declare a metric and record 1 into it."""
    instrument = registry.group(group).declare(
        name, kind=kind, unit=unit, description=str(more.get("description", "")), boundaries=None
    )
    instrument.record(1)


def dropped(registry: Registry) -> dict[str, float]:
    """Return what was counted as dropped, by reason."""
    found = [metric for metric in registry.collect() if metric.name == "tachograph.dropped"]
    points = [point for metric in found for point in metric.points if isinstance(point, NumberPoint)]
    return {str(dict(point.attributes)["reason"]): point.value for point in points}


def test_classic_page() -> None:
    """The classic text has HELP and TYPE for each family, the rank's labels on every series, and target_info."""
    registry = Registry()
    group = registry.group("train")
    group.instrument("loss").record(0.25)
    group.instrument("checkpoint.success").record(2)
    group.declare("fetch", kind="histogram", unit="s", description="A\nfetch\\", boundaries=[0.5, 10]).record(0.5)
    found = Page({"dl_rank": "0"}, {"service.name": "t", "dl.world_size": 2}, registry)
    assert found.render(registry.collect(), None, CLASSIC).decode().splitlines() == [
        "# HELP target_info Target metadata",
        "# TYPE target_info gauge",
        'target_info{dl_rank="0",dl_world_size="2",service_name="t"} 1',
        "# HELP loss loss",
        "# TYPE loss gauge",
        'loss{dl_rank="0",otel_scope_name="train"} 0.25',
        "# HELP checkpoint_success_total checkpoint.success",
        "# TYPE checkpoint_success_total counter",
        'checkpoint_success_total{dl_rank="0",otel_scope_name="train"} 2',
        r"# HELP fetch_seconds A\nfetch\\",
        "# TYPE fetch_seconds histogram",
        'fetch_seconds_bucket{dl_rank="0",otel_scope_name="train",le="0.5"} 1',
        'fetch_seconds_bucket{dl_rank="0",otel_scope_name="train",le="10"} 1',
        'fetch_seconds_bucket{dl_rank="0",otel_scope_name="train",le="+Inf"} 1',
        'fetch_seconds_sum{dl_rank="0",otel_scope_name="train"} 0.5',
        'fetch_seconds_count{dl_rank="0",otel_scope_name="train"} 1',
    ]


def test_openmetrics_page() -> None:
    """OpenMetrics has counters' families without _total, units, float bounds and an end; UTF-8 names stay."""
    registry = Registry()
    group = registry.group("")
    group.instrument("checkpoint.success").record(2)
    group.declare("fetch.time", kind="histogram", unit="s", description='"A"', boundaries=[0.5, 10]).record(0.5)
    found = Page({}, {"service.name": "t"}, registry)
    assert found.render(registry.collect(), None, OPENMETRICS_UTF8).decode().splitlines() == [
        "# HELP target Target metadata",
        "# TYPE target info",
        'target_info{"service.name"="t"} 1',
        '# HELP "checkpoint.success" checkpoint.success',
        '# TYPE "checkpoint.success" counter',
        '{"checkpoint.success_total"} 2',
        r'# HELP "fetch.time_seconds" \"A\"',
        '# TYPE "fetch.time_seconds" histogram',
        '# UNIT "fetch.time_seconds" seconds',
        '{"fetch.time_seconds_bucket",le="0.5"} 1',
        '{"fetch.time_seconds_bucket",le="10.0"} 1',
        '{"fetch.time_seconds_bucket",le="+Inf"} 1',
        '{"fetch.time_seconds_sum"} 0.5',
        '{"fetch.time_seconds_count"} 1',
        "# EOF",
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_histogram_without_boundaries(form: Format) -> None:
    """A histogram without boundaries has the one bucket that every histogram has."""
    registry = Registry()
    group = registry.group("g")
    group.declare("h", kind="histogram", unit="", description="", boundaries=[]).record(3)
    scope = ("otel_scope_name", "g")
    assert series(page(registry, form), form) == {
        ("h_bucket", frozenset({scope, ("le", "+Inf")})): 1,
        ("h_sum", frozenset({scope})): 3,
        ("h_count", frozenset({scope})): 1,
    }


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**30, -(2**63), 2**62 + 1, 1e-300])
def test_any_number_is_shown(value: float, form: Format) -> None:
    """NaN, infinities and integers beyond 64 bits are shown so that a scraper can read them."""
    registry = Registry()
    registry.group("g").instrument("x").record(value)
    shown = next(iter(series(page(registry, form), form).values()))
    assert repr(shown) == repr(float(value))


def test_labels() -> None:
    """Attributes become labels as in the collector: JSON unless text, joined on a clash, absent where empty."""
    registry = Registry()
    attributes = {
        "flag": True,
        "whole": 1.0,
        "part": 0.5,
        "tiny": 1e-7,
        "list": ("a<b", 'é"'),
        "numbers": (1.0, 2.5),
        "a.b": "first",
        "a_b": "second",
        "empty": "",
        "dl_rank": "mine",
        "__name__": "not the name",
        "otel.scope.name": "my scope",
        "quoted": 'a"b\\c\nd',
        "half": "\ud800",
    }
    registry.group("g").instrument("x").record(1, attributes)
    [(name, labels)] = series(page(registry, labels={"dl_rank": "0", "dl_role": "w"}).split("\n", 3)[3], CLASSIC)
    assert (name, dict(labels)) == (
        "x",
        {
            "flag": "true",
            "whole": "1",
            "part": "0.5",
            "tiny": "1e-7",
            "list": r'["a<b","é\""]',
            "numbers": "[1,2.5]",
            "a_b": "first;second",
            "dl_rank": "mine",
            "dl_role": "w",
            "key__name__": "not the name",
            "otel_scope_name": "my scope",
            "quoted": 'a"b\\c\nd',
            "half": "?",
        },
    )


def test_reserved_labels() -> None:
    """An attribute cannot rename its sample, in UTF-8 either."""
    registry = Registry()
    registry.group("").instrument("x").record(1, {"__name__": "y", "k\0": "z"})
    assert series(page(registry, CLASSIC_UTF8), CLASSIC_UTF8) == {
        ("x", frozenset({("key__name__", "y"), ("k_", "z")})): 1,
    }


def test_a_buckets_label_stays_its_own() -> None:
    """An attribute le does not replace the bucket's label."""
    registry = Registry()
    registry.group("").declare("h", kind="histogram", unit="", description="", boundaries=[1]).record(1, {"le": "x"})
    assert 'h_bucket{exported_le="x",le="1"} 1' in page(registry)


@pytest.mark.parametrize("form", FORMATS)
def test_one_family_of_several_scopes(form: Format) -> None:
    """What two groups record under one name stands in one family, told apart by its scope."""
    registry = Registry()
    declare(registry, "x", "counter", group="a", description="One.")
    declare(registry, "y", "gauge", group="a")
    declare(registry, "x", "counter", group="b", description="Another.")
    text = page(registry, form)
    assert text.count("# TYPE x") == text.count("# HELP x") == 1
    assert [value for (name, _), value in series(text, form).items() if name == "x_total"] == [1, 1]


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("x", "gauge"), ("x", "histogram")),
        (("x", "histogram"), ("x.count", "gauge")),
        (("x.sum", "gauge"), ("x", "histogram")),
        (("x.total", "gauge"), ("x", "counter")),
        (("target_info", "gauge"), ("y", "gauge")),
    ],
)
def test_conflicting_families(
    first: tuple[str, Kind], second: tuple[str, Kind], form: Format, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two metrics that need one name the later is left out, counted and logged once, however often one scrapes."""
    registry = Registry()
    declare(registry, *first, group="a")
    declare(registry, *second, group="b")
    shared = Page({}, {"service.name": "t"}, registry)
    with caplog.at_level(logging.WARNING, "tachograph"):
        for _ in range(3):
            text = shared.render(registry.collect()[:2], None, form).decode()
    parsed(text, form)
    assert dropped(registry) == {"name_conflict": 1}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("name", "kind", "unit"), [("_total", "counter", ""), ("_ratio", "gauge", "1")])
def test_a_name_that_is_only_a_suffix(form: Format, name: str, kind: Kind, unit: str) -> None:
    """A counter ``_total`` is ``total``: the parser would leave nothing of its name, and refuse the page."""
    registry = Registry()
    declare(registry, name, kind, unit=unit)
    text = page(registry, form)
    assert list(series(text, form).values()) == [1]
    assert f"\n{name.removeprefix('_')}{{" in text


def test_a_gauge_beside_a_counter() -> None:
    """A gauge x and a counter x_total are both shown, though OpenMetrics calls the families of both x."""
    registry = Registry()
    declare(registry, "x", "gauge")
    declare(registry, "x", "counter", group="other")
    declare(registry, "total", "counter")
    declare(registry, "target", "gauge")
    for form in FORMATS:
        text = Page({}, {"service.name": "t"}, registry).render(registry.collect(), None, form).decode()
        names = {name for name, _ in series(text, form)}
        assert {"x", "x_total", "target", "target_info"} < names
    assert not dropped(registry)


def test_duplicate_series() -> None:
    """Two series that get the same labels are one too many: the later is left out and counted once."""
    registry = Registry()
    group = registry.group("g")
    clashing: list[dict[str, object]] = [{"a": 1}, {"a": "1"}, {"a": True}, {"b": ""}, {}]
    for value, attributes in enumerate(clashing):
        group.instrument("x.y").record(value, attributes)
    group.instrument("x_y").record(9, {"a": 1})
    shared = Page({}, {}, registry)
    metrics = registry.collect()
    for _ in range(2):
        assert series(shared.render(metrics, None, CLASSIC).decode(), CLASSIC) == {
            ("x_y", frozenset({("otel_scope_name", "g"), ("a", "1")})): 0,
            ("x_y", frozenset({("otel_scope_name", "g"), ("a", "true")})): 2,
            ("x_y", frozenset({("otel_scope_name", "g")})): 3,
        }
    assert dropped(registry) == {"name_conflict": 3}


def test_exemplars() -> None:
    """A bucket shows the newest exemplar that is in it, in OpenMetrics only."""
    registry = Registry()
    found = registry.group("").declare("h", kind="histogram", unit="", description="", boundaries=[1, 2]).series({})
    assert isinstance(found, Distribution)
    found.record(1.0)
    found.record(5.0)
    for value, when in ((1.0, 1_700_000_000_123_000_000), (5.0, 1_700_000_001_000_000_000)):
        found.note(Exemplar(value, when, 0xABC, 0xDEF))
    text = page(registry, OPENMETRICS)
    ids = '{trace_id="00000000000000000000000000000abc",span_id="0000000000000def"}'
    assert f'h_bucket{{le="1.0"}} 1 # {ids} 1.0 1700000000.123\n' in text
    assert f'h_bucket{{le="+Inf"}} 2 # {ids} 5.0 1700000001.000\n' in text
    assert 'h_bucket{le="2.0"} 1\n' in text
    parsed(text, OPENMETRICS)
    assert " # " not in page(registry, CLASSIC_UTF8)


def test_a_page_follows_its_series() -> None:
    """Each page shows the values of its collection, whichever series came or went since the page before."""
    registry = Registry()
    gauge = registry.group("g").instrument("x")
    shared = Page({}, {}, registry)
    for step in range(3):
        gauge.record(step, {"step": str(step)})
        gauge.record(step)
        metric = registry.collect()[0]
        shown = metric._replace(points=[*metric.points[-2:], NumberPoint((), step, 0)])
        values = sorted(series(shared.render([shown], None, CLASSIC).decode(), CLASSIC).values())
        assert values[-1] == step
        assert shared.render([], None, CLASSIC) == b""


SOME = st.lists(
    st.tuples(st.sampled_from(["a", "a.b", "a_b", "le"]), st.sampled_from(["", "x", 1, True, 1.0, (1, True)])),
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: tuple(sorted(pairs)))


VALUES = st.lists(st.sampled_from([0.5, 1e-7, 0.0, -0.0, 1e308, math.inf, math.nan, 3]), min_size=1, max_size=2)
MANY = [(("i", str(index)),) for index in range(62)]  # series that are written together with those before and after


SHOWN = st.tuples(
    st.sampled_from(["gauge", "gauge", "counter"]), st.lists(SOME, max_size=6, unique_by=repr), st.booleans(), VALUES
)


@given(st.lists(SHOWN, max_size=4), st.sampled_from(FORMATS))
def test_whatever_was_shown_before(
    collections: list[tuple[Kind, list[Attributes], bool, list[float]]], form: Format
) -> None:
    """A page that keeps parts of the page before is the page that keeps nothing: any series, order, kind and values."""
    registry = Registry()
    kept = Page({"dl_rank": "0"}, {}, registry)
    for kind, attributes, many, values in collections:
        those = [*MANY, *attributes] if many else attributes
        for turn, again in enumerate((those, those, those, [(*each,) for each in those], those[::-1])):
            found = [values[max(turn, place) % len(values)] for place in range(len(again))]
            points = [NumberPoint(each, value, 0) for each, value in zip(again, found, strict=True)]
            metrics = [MetricPoints("g", "x_total", "", kind, "X.", points)]
            fresh = Page({"dl_rank": "0"}, {}, Registry()).render(metrics, None, form)
            assert kept.render(metrics, None, form) == fresh


def test_a_name_that_becomes_a_histogram() -> None:
    """A name, scope and unit that come back as another kind have the lines of that kind."""
    numbers, values = Registry(), Registry()
    numbers.group("g").instrument("x").record(1)
    values.group("g").declare("x", kind="histogram", unit="", description="", boundaries=(1.0,)).record(2)
    shared = Page({}, {}, numbers)
    assert series(shared.render(numbers.collect(), None, CLASSIC).decode(), CLASSIC).values()
    assert shared.render(values.collect(), None, CLASSIC).decode() == page(values)


def test_a_format_that_nobody_asks_for_is_forgotten() -> None:
    """Ten minutes after its last page in a format nothing is kept for it; a scraper that goes on keeps its own."""
    now = [0.0]
    renderer = Renderer(Registry(), clock=lambda: now[0])
    attributes = (("layer", str(1)),)  # no constant, which the code would hold, too
    metrics = [MetricPoints("g", "x", "", "gauge", "X.", [NumberPoint(attributes, 1, 0)])]
    unused = sys.getrefcount(attributes)
    renderer.render(SlicedText(), CLASSIC, metrics)
    in_use = sys.getrefcount(attributes)
    assert in_use > unused
    for _ in range(2):
        now[0] += 400
        assert sys.getrefcount(attributes) == in_use
        renderer.render(SlicedText(), OPENMETRICS, [])
    assert sys.getrefcount(attributes) == unused


@pytest.mark.parametrize("most", range(0, 40, 3))
def test_a_text_that_is_too_long_ends_with_a_whole_line(most: int) -> None:
    """Lines are kept as long as they fit, those after them are counted, and the end is there in any case."""
    lines = [f"line {number} é\n" for number in range(4)]
    slow = SlicedText(lambda: None, most)
    for line in lines:
        slow.lines.append(line)
        time.sleep(2 * SLICE)
        slow.breathe()
    kept = slow.done(b"# EOF\n").removesuffix(b"# EOF\n").decode().splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    assert len(kept) == most // len(lines[0].encode())
    assert slow.omitted == len(lines) - len(kept)
    assert slow.is_full is (len(kept) < len(lines))


def test_concurrent_pages() -> None:
    """Several scrapes at once each get a whole page."""
    registry = Registry()
    for index in range(300):
        registry.group("g").instrument("x").record(index, {"i": index})
    shared = Page({"dl_rank": "0"}, {}, registry)
    metrics = registry.collect()
    pages: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: pages.append(shared.render(metrics, None, CLASSIC, lambda: None)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pages) == 4
    assert len(set(pages)) == 1


@pytest.mark.process
def test_promtool_takes_the_classic_page(tmp_path: Path) -> None:
    """Both generations of promtool parse a classic page, whatever the names are (exit 3 is about style)."""
    registry = Registry()
    for name in ("loss", "outer.<locals>.inner", "x.count", "x.duration.ms", "9 lives", "été", "checkpoint.success"):
        registry.group("a group").instrument(name).record(1, {"k.1": 'v"\\\n', "9": "é"})
    registry.group("other").instrument("x.duration.ms").record(2)
    text = page(registry, labels={"dl_rank": "0"})
    (tmp_path / "page").write_text(text)
    for major in (2, 3):
        with (tmp_path / "page").open("rb") as file:
            command = [servers.find("promtool", major), "check", "metrics"]
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stderr


NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable()) | st.sampled_from(
    ["x", "x.count", "x_total", "x.total", "x.success", "x_seconds", "x.duration.ms", "target", "total", "a.b", "a_b"]
)
VALUES = st.floats(allow_nan=False) | st.integers()
ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=6) | st.sampled_from(["a.b", "a_b", "le", "otel.scope.name"]),
    st.text(max_size=8) | st.booleans() | st.integers() | st.floats() | st.lists(st.text(max_size=3), max_size=2),
    max_size=3,
)
RECORDED = st.lists(st.tuples(st.sampled_from(["", "train", "é g"]), NAMES, VALUES, ATTRIBUTES), max_size=8)


@given(recorded=RECORDED, form=st.sampled_from(FORMATS))
def test_what_was_recorded_is_read_back(
    recorded: list[tuple[str, str, float, dict[str, object]]], form: Format
) -> None:
    """Whatever names, attributes and values are recorded: prometheus_client's parsers read the same values back."""
    registry = Registry()
    for group, name, value, attributes in recorded:
        registry.group(group).instrument(name).record(value, attributes)
    metrics = [metric for metric in registry.collect() if metric.scope != "tachograph"]
    text = Page({}, {}, registry).render(metrics, None, form).decode()
    found = series(text, form)
    left_out = dropped(registry).get("name_conflict", 0)
    expected = Counter((name, repr(value)) for name, value in _values(metrics, form))
    shown = Counter((name, repr(value)) for (name, _), value in found.items())
    assert not shown - expected
    assert shown == expected or left_out


def _values(metrics: Sequence[MetricPoints], form: Format) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of every line that there should be."""
    for metric in metrics:
        name = prometheus_name(metric.name, metric.unit, metric.kind, utf8=form.utf8)
        for point in metric.points:
            if isinstance(point, NumberPoint):
                yield name, float(point.value)
                continue
            yield from ((name + "_bucket", float(count)) for count in (*point.summary.at_most, point.summary.count))
            if point.summary.total.value() >= 0 or not form.openmetrics:
                yield name + "_sum", float(point.summary.total.value())
                yield name + "_count", float(point.summary.count)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("below", ["value", "bound"])
def test_a_histogram_whose_sum_is_no_counter(form: Format, below: str) -> None:
    """OpenMetrics has no sum, and so no count, below zero or beside bounds below it; all buckets are there.

    The classic text has the sum as it is. Once the sum is above zero again it is there again.
    """
    registry = Registry()
    bounds = [-1.0, 1.0] if below == "bound" else [1.0, 2.0]
    lag = registry.group("").declare("lag", kind="histogram", unit="", description="", boundaries=bounds)
    lag.record(-0.5)
    there = {name: value for (name, _), value in series(page(registry, form), form).items()}
    assert there["lag_bucket"] == 1
    assert (there.get("lag_sum"), there.get("lag_count")) == ((None, None) if form.openmetrics else (-0.5, 1))
    lag.record(4)
    there = {name: value for (name, _), value in series(page(registry, form), form).items()}
    hidden = form.openmetrics and below == "bound"
    assert (there.get("lag_sum"), there.get("lag_count")) == ((None, None) if hidden else (3.5, 2))


@given(key=st.text(min_size=1, max_size=8), value=st.text(max_size=8))
def test_labels_are_read_back(key: str, value: str) -> None:
    """A label's text arrives as it was recorded, and so does its name where UTF-8 was asked for."""
    registry = Registry()
    registry.group("").instrument("x").record(1, {key: value})
    for form in FORMATS:
        [(_, labels)] = series(page(registry, form), form)
        name = prometheus_label(key.replace("\0", "_"), utf8=form.utf8)
        name = "key" + name if name.startswith("__") else name
        assert dict(labels) == ({name: value} if value else {})
