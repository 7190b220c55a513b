"""Rows of unusual values and names, and of limits, which concern all APIs."""

from __future__ import annotations

import math

import tachograph
from expected import Counter, Gauge, Handed, Histogram, Lost, Nothing, nonfinite
from rows import NO_NAN, PROVIDERS, Section, counted, differently
from tachograph import Metric, put_metric

section = Section("Unusual values and names, limits")
row = section.row


@row(
    Gauge("o.nan", "nan.loss", math.nan),
    nonfinite("nan.loss", 1),
    Handed("o.nan", "nan.loss", [0.5, math.nan]),
    otherwise={PROVIDERS: counted(NO_NAN, Nothing("o.nan", "nan.loss"), nonfinite("nan.loss", 1))},
)
def nan_in_a_gauge() -> None:
    """A gauge shows NaN as it is, instead of the last finite value; NaN values are counted."""
    put_metric("nan.loss", 0.5, "o.nan")
    put_metric("nan.loss", math.nan, "o.nan")


@row(
    Gauge("o.inf", "inf.loss", -math.inf),
    nonfinite("inf.loss", 1),
    otherwise={PROVIDERS: counted(NO_NAN, Nothing("o.inf", "inf.loss"), nonfinite("inf.loss", 1))},
)
def infinity_in_a_gauge() -> None:
    """The same is true for infinity."""
    put_metric("inf.loss", -math.inf, "o.inf")


@row(Histogram("o.nans", "nan", 2, 3.0, 1.0, 2.0, "s"), nonfinite("nan_seconds", 2))
def nan_in_a_histogram() -> None:
    """NaN and infinity are not added to histograms, but counted."""
    for value in (1.0, math.nan, 2.0, math.inf):
        put_metric("nan_seconds", value, "o.nans")


@row(Counter("o.nanc", "nan.success", 3), nonfinite("nan.success", 1))
def nan_in_a_counter() -> None:
    """NaN is not added to counters, but counted."""
    for value in (1, math.nan, 2):
        put_metric("nan.success", value, "o.nanc")


@row(Gauge("o.bool", "ready", 1), Counter("o.bool", "done.success", 1), Handed("o.bool", "ready", [True]))
def a_bool() -> None:
    """A bool becomes 0 or 1; handlers get it unchanged."""
    put_metric("ready", True, "o.bool")
    put_metric("done.success", True, "o.bool")
    put_metric("done.success", False, "o.bool")


@row(
    Gauge("o.huge", "huge", float(2**70)),
    Counter("o.huge", "exact.success", 2**60 + 3),
    Counter("o.huge", "large.success", float(2**64 + 2**12)),
    Handed("o.huge", "huge", [2**70]),
)
def a_huge_integer() -> None:
    """Integers up to 64 bits are exact, larger ones become floats; handlers get them unchanged."""
    put_metric("huge", 2**70, "o.huge")
    put_metric("exact.success", 2**60, "o.huge")
    put_metric("exact.success", 3, "o.huge")
    put_metric("large.success", 2**63, "o.huge")
    put_metric("large.success", 2**63 + 2**12, "o.huge")


@row(
    Nothing("o.text"),
    Lost("no_number", 3),
    Handed("o.text", "loss", ["low", None, None]),
)
def a_string_and_none() -> None:
    """A value that is not a number is dropped and counted; handlers get it unchanged."""
    for value in ("low", None, 1j):
        put_metric("loss", value, "o.text")


@row(
    Counter("o.negative", "sent.success", 3),
    Lost("negative", 1),
    Handed("o.negative", "sent.success", [3, -2]),
)
def a_negative_add() -> None:
    """A negative value for a counter is dropped and counted."""
    put_metric("sent.success", 3, "o.negative")
    put_metric("sent.success", -2, "o.negative")


@row(
    Histogram("o.below", "offset.latency", 3, -1.0, -4.0, 2.0),
    otherwise={
        ("registry",): differently(
            "the sum is omitted, because OpenMetrics does not allow one that can fall; the bucket `+Inf` has the count",
            Histogram("o.below", "offset.latency", 3),
        )
    },
)
def a_negative_value_in_a_histogram() -> None:
    """Histograms accept negative values."""
    for value in (-4.0, 1.0, 2.0):
        put_metric("offset.latency", value, "o.below")


@row(
    Gauge("o.series", "loss", 0, attributes={"layer": 0}),
    Gauge("o.series", "loss", 1998, attributes={"layer": 1998}),
    Gauge("o.series", "loss", 2000, attributes={"otel.metric.overflow": True}),
)
def too_many_series() -> None:
    """Each metric has at most 2,000 series; further ones share one series with `otel.metric.overflow=true`."""
    for layer in range(2001):
        put_metric("loss", layer, "o.series", attributes={"layer": layer})


@row(Histogram("o.many", "load", 100_000, 100_000 * 99_999 / 2 / 1000, 0.0, 99.999, "s"))
def a_hundred_thousand_values() -> None:
    """Histograms are exact at any rate, for example with 100,000 values at once."""
    record = tachograph.declare("load", group="o.many", kind="histogram", unit="s").bind()
    for value in range(100_000):
        record(value / 1000)


@row(
    Gauge("o.names", "Verlust.größe", 1),
    Gauge("o.names", "outer.<locals>.inner", 2),
    Gauge("o.nämen", "loss", 3),
    otherwise={
        PROVIDERS: differently(
            "SDK names are ASCII and lower case, and other characters become `_`; scopes are unchanged",
            Gauge("o.names", "verlust.gr_e", 1),
            Gauge("o.names", "outer._locals_.inner", 2),
            Gauge("o.nämen", "loss", 3),
        )
    },
)
def odd_names() -> None:
    """Any string is a valid name; in classic Prometheus names, each sequence of invalid characters becomes one `_`."""
    put_metric("Verlust.größe", 1, "o.names")
    put_metric("outer.<locals>.inner", 2, "o.names")
    put_metric("loss", 3, "o.nämen")


@row(Gauge("o.metric", "o.metric", 1))
def a_bool_in_a_metric() -> None:
    """`Metric.record(True)` records 1."""
    Metric("o.metric", group="o.metric").record(True)


@row(Gauge("o.metric", "o.told", 2.0), Lost("no_number", 1))
def a_string_in_a_metric() -> None:
    """`Metric.record` with a string does not raise; later values are recorded."""
    loss = Metric("o.told", group="o.metric", throttle=None)
    for value in (1.0, "two", 2.0):
        loss.record(value)
