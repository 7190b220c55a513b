"""Base-2 exponential histograms, held against the SDK's own and against the values themselves."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from examples import examples
from tachograph.recording.exponential import (
    BUCKETS,
    SDK_BUCKETS,
    ExponentialCounts,
    ExponentialHistogram,
    histogram_of,
    histograms_of,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
chunks = st.lists(st.lists(finite, min_size=1, max_size=60), min_size=1, max_size=6)


def counted(chunks: Sequence[Sequence[float]], most: int = BUCKETS, *, packed: bool = True) -> ExponentialCounts:
    """Return the counts of chunks of values, with NumPy or without."""
    counts = ExponentialCounts(most)
    for chunk in chunks:
        counts = counts.plus(np.sort(np.array(chunk, dtype=np.float64)) if packed else sorted(map(float, chunk)))
    return counts


def bucket(value: float, scale: int) -> Iterator[int]:
    """Yield the index of a magnitude's bucket by exact arithmetic: base**index < value <= base**(index + 1)."""
    value = max(value, sys.float_info.min)  # as the SDK has it
    mantissa, exponent = math.frexp(value)
    if scale <= 0:
        power = exponent - 1 if mantissa != 0.5 else exponent - 2
        yield power >> -scale
        return
    near = math.floor(math.ldexp(math.log2(value), scale))
    for index in range(near - 2, near + 3):
        if bound(index, scale) < value <= bound(index + 1, scale):
            yield index


def bound(index: int, scale: int) -> float:
    """Return the lower bound of a bucket."""
    exponent = math.ldexp(index, -scale)
    return math.inf if exponent >= 1024 else 2.0**exponent


def expected(values: Sequence[float], scale: int) -> dict[int, int]:
    """Return the counts by the index of the bucket."""
    return Counter(next(bucket(value, scale)) for value in values)


def listed(histogram: ExponentialHistogram, side: str) -> dict[int, int]:
    """Return the counts of a side by the index of the bucket."""
    found = getattr(histogram, side)
    return {index: count for index, count in enumerate(found.counts, found.offset) if count}


@settings(max_examples=examples(200))
@given(chunks=chunks, most=st.sampled_from([SDK_BUCKETS, BUCKETS]), packed=st.booleans())
def test_each_value_is_in_its_bucket(chunks: list[list[float]], most: int, packed: bool) -> None:
    """Every finite float, of either sign, the smallest and the largest included, is counted in its own bucket once."""
    found = counted(chunks, most, packed=packed).histogram()
    values = [value for chunk in chunks for value in chunk]
    assert found.zeros == values.count(0.0)
    assert listed(found, "positive") == expected([value for value in values if value > 0], found.scale)
    assert listed(found, "negative") == expected([-value for value in values if value < 0], found.scale)
    assert found.total == len(values)
    assert repr((found.minimum, found.maximum)) == repr(
        (min(values) + 0.0, max(values) + 0.0) if values else (math.nan,) * 2
    )
    assert max(len(found.positive.counts), len(found.negative.counts)) <= most


ON_A_BOUND = st.builds(
    lambda octave, part, aside: (
        math.nextafter(2.0 ** (octave + part / 256), aside) if aside else 2.0 ** (octave + part / 256)
    ),
    st.integers(-40, 40),
    st.sampled_from([0, 0, 128, 1, 255]),
    st.sampled_from([0.0, math.inf, None]),
)


@given(st.lists(ON_A_BOUND | st.floats(1e-9, 1e9), min_size=1, max_size=100))
def test_few_values_on_the_bounds_of_buckets(values: list[float]) -> None:
    """A power of two, or the float beside it, is in its own bucket, and the others are where they are without it."""
    found = ExponentialCounts().plus(sorted(values)).histogram()
    assert found == histogram_of(Counter(values))
    assert listed(found, "positive") == expected(values, found.scale)


@given(
    index=st.integers(-(2**18) + 4096, 2**18 - 4096) | st.integers(-64, 64),
    asides=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, math.inf, None])), min_size=17, max_size=120),
    most=st.sampled_from([2, BUCKETS]),
)
def test_values_close_together_are_counted_by_the_bounds_of_their_buckets(
    index: int, asides: list[tuple[int, float | None]], most: int
) -> None:
    """That is quicker than a logarithm of each, and no bucket differs: on a bound, beside it, at any scale."""
    bounds = [(2.0 ** ((index + place) / 256), aside) for place, aside in asides]
    values = [bound if aside is None else math.nextafter(bound, aside) for bound, aside in bounds]
    found = ExponentialCounts(most).plus(sorted(values)).histogram()
    assert repr(found) == repr(histogram_of(Counter(values), most))
    assert listed(found, "positive") == expected(values, found.scale)


FEW_CHUNKS = st.lists(
    st.lists(ON_A_BOUND | st.floats(1e-9, 1e9) | st.integers(1, 2**60), min_size=1, max_size=60), max_size=4
)


@settings(max_examples=examples(150))
@given(
    series=st.lists(st.tuples(FEW_CHUNKS | chunks, st.booleans()), max_size=6),
    most=st.sampled_from([SDK_BUCKETS, BUCKETS]),
    has_numpy=st.booleans(),
)
def test_histograms_of_many_series_are_those_of_each(
    series: list[tuple[list[list[float]], bool]], most: int, has_numpy: bool
) -> None:
    """Counting series together changes no bucket, whatever their values are: few or many, on bounds, of any sign."""
    every = [counted(chunks, most, packed=packed) for chunks, packed in series]
    with pytest.MonkeyPatch.context() as patch:
        if not has_numpy:
            patch.setitem(sys.modules, "numpy", None)
        found = histograms_of(every)
        wanted = [counts.histogram() for counts in every]
    assert found == wanted
    assert repr(found) == repr(wanted)


@settings(max_examples=examples(50))
@given(values=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=300))
def test_it_is_as_fine_as_the_sdks(values: list[float]) -> None:
    """With the specification's 160 buckets the scale is the SDK's, or one coarser: the SDK keeps no bucket spare."""
    theirs = _sdk(values)
    ours = counted([values], SDK_BUCKETS).histogram()
    assert theirs.scale >= ours.scale >= min(theirs.scale, 8) - 1
    steps = theirs.scale - ours.scale
    counts: Counter[int] = Counter()
    for index, count in enumerate(theirs.positive.bucket_counts, theirs.positive.offset):
        counts[index >> steps] += count
    if ours.scale >= 0:  # there the SDK takes logarithms, which may be a bucket off at a bound
        assert sum(counts.values()) == sum(listed(ours, "positive").values())
    else:
        assert {index: count for index, count in counts.items() if count} == listed(ours, "positive")


def _sdk(values: list[float]) -> Any:
    reader = InMemoryMetricReader()
    view = View(instrument_name="t", aggregation=ExponentialBucketHistogramAggregation(max_size=SDK_BUCKETS))
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    histogram = provider.get_meter("m").create_histogram("t")
    for value in values:
        histogram.record(value)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]


@settings(max_examples=examples(100))
@given(one=chunks, two=chunks)
def test_two_in_one_are_those_of_all_values(one: list[list[float]], two: list[list[float]]) -> None:
    """Histograms that are put together hold what one of all values holds, at a scale that both have."""
    whole = counted([*one, *two]).histogram()
    both = counted(one).histogram().plus(counted(two).histogram())
    scale = min(whole.scale, both.scale)
    assert both.at_scale(scale) == whole.at_scale(scale)


@pytest.mark.parametrize("packed", [True, False], ids=["numpy", "standard library"])
@pytest.mark.parametrize("octaves", [0.01, 1, 5, 20])
def test_quantiles_are_within_their_error(octaves: float, packed: bool) -> None:
    """Up to twenty powers of two between the extremes, no quantile is further off than 2.2 %, and none outside."""
    random = np.random.default_rng(7)
    values = 0.0104 * 2.0 ** random.uniform(0, octaves, 5000)
    values[:2] = 0.0104, 0.0104 * 2.0**octaves
    found = counted(values.reshape(10, 500).tolist(), packed=packed).histogram()
    assert found.scale >= 4
    assert found.error() < 0.022
    parts = [0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1]
    ordered = np.sort(values)
    for part, quantile in zip(parts, found.quantiles(parts), strict=True):
        rank = part * (len(ordered) - 1)
        low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
        assert low / 1.022 <= quantile <= high * 1.022
        assert ordered[0] <= quantile <= ordered[-1]


def test_a_constant_is_exact() -> None:
    """A function that always takes 10.4 ms has a p50 of 10.4 ms."""
    found = counted([[0.0104] * 100]).histogram()
    assert found.quantiles([0.5, 0.99]) == [0.0104, 0.0104]


def test_quantiles_go_through_zero_and_below() -> None:
    """Negative values come first, then the zeros, then the positive ones."""
    found = counted([[-4.0] * 10 + [0.0] * 10 + [4.0] * 10]).histogram()
    low, middle, high = found.quantiles([0.0, 0.5, 1.0])
    assert low == pytest.approx(-4.0, rel=0.022)
    assert middle == 0.0
    assert high == pytest.approx(4.0, rel=0.022)


def test_no_values_have_no_quantile() -> None:
    """Without a value a quantile is NaN."""
    assert math.isnan(ExponentialCounts().histogram().quantiles([0.5])[0])


def test_all_floats_fit() -> None:
    """The smallest float and the largest one are in one histogram, and its stated error is that of its scale."""
    found = counted([[5e-324, 1.0, sys.float_info.max]]).histogram()
    assert found.total == 3
    assert found.scale == -3
    assert found.error() == pytest.approx(15.0)
    assert found.quantiles([0, 1]) == [5e-324, sys.float_info.max]
