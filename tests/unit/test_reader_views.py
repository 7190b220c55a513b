"""Views of a program's MeterProvider on fed distributions: ours become what the SDK makes of its own instruments."""

from __future__ import annotations

import logging
import math
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricsData
from opentelemetry.sdk.metrics.view import (
    Aggregation,
    DefaultAggregation,
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    LastValueAggregation,
    SumAggregation,
    View,
)
from prometheus_client import CollectorRegistry, generate_latest

from examples import examples
from metric_programs import Program, series

BOUNDARIES = (0.5, 1.0, 2.5, 5.0, 10.0)
DELTA = AggregationTemporality.DELTA
LIMITED = "aggregation_cardinality_limit" in signature(View).parameters  # from 1.45.2


def stated(data: MetricsData | None) -> dict[str, Any]:
    """Return all that is told of the scope ``train``, apart from times; sums in the precision that they promise."""
    found: dict[str, Any] = {}
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics if scope.scope.name == "train" else ():
                points = {}
                for point in metric.data.data_points:
                    what = {
                        key: value for key, value in vars(point).items() if "time" not in key and key != "attributes"
                    }
                    for key in ("sum", "value"):
                        if key in what:
                            what[key] = pytest.approx(what[key], rel=1e-12)
                    points[tuple(sorted((point.attributes or {}).items()))] = what
                kind = type(metric.data).__name__, getattr(metric.data, "aggregation_temporality", None)
                said = metric.description, metric.unit, kind, getattr(metric.data, "is_monotonic", None)
                found.setdefault(metric.name, []).append((said, points))
    return found


def views() -> st.SearchStrategy[dict[str, Any]]:
    """Return arguments of views that can be applied to our buckets, some of which match nothing."""
    bounds = st.lists(st.sampled_from(BOUNDARIES), unique=True).map(sorted).map(tuple)
    aggregations: st.SearchStrategy[Aggregation | None] = st.one_of(
        st.sampled_from([None, DefaultAggregation(), DropAggregation(), SumAggregation()]),
        st.just(ExplicitBucketHistogramAggregation()),
        bounds.map(ExplicitBucketHistogramAggregation),
    )
    matched = st.sampled_from(
        [
            {"instrument_name": "Fetch"},
            {"instrument_name": "other"},
            {"instrument_type": Histogram},
            {"instrument_unit": "s", "meter_name": "train"},
            {"meter_name": "eval"},
        ]
    )
    shaped = st.fixed_dictionaries(
        {
            "aggregation": aggregations,
            "attribute_keys": st.none() | st.sets(st.sampled_from(["split", "rank", "no"])),
            "description": st.none() | st.just("Loading."),
            **({"aggregation_cardinality_limit": st.none() | st.integers(1, 3)} if LIMITED else {}),
        }
    )
    named = st.sampled_from([{}, {"name": "Loading time"}])
    return st.tuples(matched, shaped, named).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(views(), max_size=3, unique_by=lambda view: view.get("name")),
    st.lists(
        st.tuples(
            st.integers(0, 2**40) | st.floats(0, 20),
            st.sampled_from(["train", "eval"]),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_views_do_what_they_do_to_the_sdks_own_histogram(
    wanted: list[dict[str, Any]], recorded: list[tuple[float, str, int, bool]]
) -> None:
    """Streams, names, descriptions, kinds, attributes, buckets, sums and extremes are those of the SDK's histogram."""
    made = [View(**view) for view in wanted]
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=made, shutdown_on_exit=False)
    theirs = provider.get_meter("train").create_histogram(
        "fetch", "s", "Fetching.", explicit_bucket_boundaries_advisory=BOUNDARIES
    )
    program = Program(views=made)
    ours = program.registry.group("train").declare(
        "fetch", kind="histogram", unit="s", description="Fetching.", boundaries=BOUNDARIES
    )
    program.join()
    for value, split, rank, collects in recorded:
        attributes = {"split": split, "rank": rank}
        theirs.record(value, attributes)
        ours.record(value, attributes)
        if collects:
            program.reader.get_metrics_data()
            reader.get_metrics_data()
    assert stated(program.reader.get_metrics_data()) == stated(reader.get_metrics_data())
    program.end()
    provider.shutdown()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.sampled_from(["train", "eval"]), st.integers(0, 2), st.booleans()),
        max_size=40,
    ),
    st.none() | st.sets(st.sampled_from(["split", "rank"])),
    st.none() | st.integers(1, 2) if LIMITED else st.none(),
)
def test_deltas_of_a_view_are_those_of_the_sdk(
    recorded: list[tuple[int, str, int, bool]], keys: set[str] | None, limit: int | None
) -> None:
    """A delta reader gets in each collection what the SDK gives: counts, sums, buckets, limits of series."""
    limits = {"aggregation_cardinality_limit": limit} if LIMITED else {}
    made = [View(instrument_name="*", attribute_keys=keys, **limits)]
    reader = InMemoryMetricReader(preferred_temporality={Histogram: DELTA})
    provider = MeterProvider([reader], views=made, shutdown_on_exit=False)
    theirs = provider.get_meter("train").create_histogram(
        "fetch", "s", "fetch", explicit_bucket_boundaries_advisory=BOUNDARIES
    )
    program = Program(InMemoryMetricReader(preferred_temporality={Histogram: DELTA}), views=made)
    ours = program.registry.group("train").declare(
        "fetch", kind="histogram", unit="s", description="fetch", boundaries=BOUNDARIES
    )
    program.join()
    for value, split, rank, collects in [*recorded, (1, "eval", 0, True), (1, "eval", 0, True)]:
        theirs.record(value, {"split": split, "rank": rank})
        ours.record(value, {"split": split, "rank": rank})
        if collects:
            got, wanted = (stated(one.get_metrics_data())["fetch"] for one in (program.reader, reader))
            if limit is None:
                for (_, points), (_, of_sdk) in zip(got, wanted, strict=True):
                    assert points.keys() == of_sdk.keys()
            totals = []
            for stream in (got, wanted):
                points = stream[0][1].values()
                assert len(points) <= (limit or 6) + 1
                buckets = [sum(counts) for counts in zip(*(point["bucket_counts"] for point in points), strict=True)]
                totals.append((sum(point["count"] for point in points), buckets))
            assert totals[0] == totals[1]
    program.end()
    provider.shutdown()


@pytest.mark.parametrize(
    ("aggregation", "said"),
    [
        (ExplicitBucketHistogramAggregation((1.0, 2.0)), "boundaries (1.0, 2.0)"),
        (ExponentialBucketHistogramAggregation(), "ExponentialBucketHistogramAggregation"),
        (LastValueAggregation(), "LastValueAggregation"),
    ],
)
def test_a_view_that_buckets_do_not_allow_for_is_said_once(
    aggregation: Aggregation, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name applies, the histogram keeps our boundaries, and one warning names the view and the wish."""
    program = Program(views=[View(instrument_name="fetch", name="renamed", aggregation=aggregation)])
    fetch = program.registry.group("train").declare(
        "fetch", kind="histogram", unit="s", description="", boundaries=BOUNDARIES
    )
    program.join()
    for _ in range(3):
        fetch.record(0.7)
        points = program.collected()
    assert points["train", "renamed"].explicit_bounds == BOUNDARIES
    assert points["train", "renamed"].count == 3
    (record,) = [record for record in caplog.records if record.name == "tachograph"]
    assert record.levelno == logging.WARNING
    assert "instrument_name='fetch'" in record.getMessage()
    assert said in record.getMessage()
    program.end()


def test_a_reader_that_prefers_exponential_histograms_is_told_and_prometheus_never_gets_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The preference of a reader cannot be had: said once. A scrape under such a view works, with explicit buckets."""
    preferred = {Histogram: ExponentialBucketHistogramAggregation()}
    program = Program(InMemoryMetricReader(preferred_aggregation=preferred))
    program.registry.group("train").instrument("fetch_seconds").record(1)
    program.join()
    assert program.collected()["train", "fetch"].count == program.collected()["train", "fetch"].count == 1
    assert [record.getMessage().split(" which")[0] for record in caplog.records] == [
        "the reader InMemoryMetricReader requests ExponentialBucketHistogramAggregation,"
    ]
    program.end()

    page = CollectorRegistry()
    views = [View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())]
    program = Program(PrometheusMetricReader(registry=page), views=views)
    program.registry.group("train").instrument("fetch_seconds").record(1)
    program.join()
    assert 'fetch_seconds_bucket{le="1.0",otel_scope_name="train"' in generate_latest(page).decode()
    program.end()


def test_extremes_and_reader_preferences_apply() -> None:
    """``record_min_max=False`` leaves them out; a reader that drops or sums histograms gets that of ours."""
    bare = ExplicitBucketHistogramAggregation((1.0,), record_min_max=False)
    for preferred, wanted in ((bare, (2, None, None)), (SumAggregation(), 3.5), (DropAggregation(), None)):
        program = Program(InMemoryMetricReader(preferred_aggregation={Histogram: preferred}))
        fetch = program.registry.group("train").declare(
            "fetch", kind="histogram", unit="s", description="", boundaries=BOUNDARIES
        )
        program.join()
        fetch.record(0.5)
        fetch.record(3)
        point = program.collected().get(("train", "fetch"))
        if isinstance(wanted, tuple):
            assert point is not None
            assert (point.count, point.min, point.max) == wanted
            assert (point.bucket_counts, point.explicit_bounds) == ((1, 1), (1.0,))
        else:
            assert (point.value if point is not None else None) == wanted
        program.end()


def test_a_scope_that_their_meter_configurator_disables_yields_nothing() -> None:
    """What the SDK would not take of the program's own instruments in that meter does not leave as ours, either."""
    from opentelemetry.sdk.metrics._internal import _MeterConfig

    program = Program(_meter_configurator=lambda scope: _MeterConfig(is_enabled=scope.name != "quiet"))
    for group in ("train", "quiet"):
        program.registry.group(group).instrument("fetch_seconds").record(1)
    program.join()
    assert {key[0] for key in program.collected() if key[1] == "fetch"} == {"train"}
    program.end()


def test_series_of_other_boundaries_are_added_up_in_those_that_both_have() -> None:
    """Two sources of one metric become one series: a Stat of ours and one over the bridge may share a name."""
    from tachograph.recording.points import HistogramPoint, MetricPoints
    from tachograph.recording.summary import Total, ValueSummary

    program = Program(InMemoryMetricReader(preferred_temporality={Histogram: DELTA}))
    parts = {
        "fine": HistogramPoint((), ValueSummary(3, Total(6), 1, 3, (1, 2, 0), 0), (1.0, 5.0), 2, ()),
        "bare": HistogramPoint((), ValueSummary(2, Total(2), 1, math.nan, (), 0), (), 1, ()),
    }
    shown = ["fine"]
    program.registry.group("g").sources.append(
        lambda: iter([MetricPoints("g", "load", "", "histogram", "", [parts[name]]) for name in shown])
    )
    program.join()
    assert series(program.reader.get_metrics_data())["g", "load"].count == 3
    shown.insert(0, "bare")
    point = series(program.reader.get_metrics_data())["g", "load"]
    assert (point.count, point.sum, point.min, point.max) == (2, 2, 1, None)
    program.end()
    cumulative = Program()
    cumulative.registry.group("g").sources += program.registry.group("g").sources
    cumulative.join()
    point = cumulative.collected()["g", "load"]
    assert (point.count, point.sum, point.min, point.max, point.explicit_bounds) == (5, 8, 1, None, ())
    cumulative.end()
