"""The packed form of exponential histograms in a run's file."""

from __future__ import annotations

import contextlib
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.recording.exponential import ExponentialBuckets, ExponentialCounts, ExponentialHistogram
from tachograph.runs.spread import MOST_BUCKETS, MOST_BYTES, pack_histogram, unpack_histogram

finite = st.floats(allow_nan=False, allow_infinity=False)


def histogram_of(values: list[float], most: int = 320) -> ExponentialHistogram:
    """Return the histogram of some values."""
    return ExponentialCounts(most).plus(sorted(values)).histogram()


@given(st.lists(finite, min_size=1, max_size=200), st.integers(1, 2**70))
def test_a_histogram_comes_back_as_it_was(values: list[float], times: int) -> None:
    """Whatever was counted is read back alike: both signs, zeros, empty buckets between, and counts of any size."""
    found = histogram_of(values)
    assert unpack_histogram(pack_histogram(found)) == found
    many = found._replace(zeros=times, positive=ExponentialBuckets(0, (times, 0, 0, 1)))
    assert unpack_histogram(pack_histogram(many)) == many


def test_unknown_extremes_come_back_as_nan() -> None:
    """A histogram without extremes has none after it was stored, either; nor has an empty one."""
    found = unpack_histogram(pack_histogram(ExponentialHistogram(3, 1, ExponentialBuckets(-5, (1, 0, 2)))))
    assert math.isnan(found.minimum)
    assert math.isnan(found.maximum)
    assert found.positive == ExponentialBuckets(-5, (1, 0, 2))
    assert unpack_histogram(pack_histogram(ExponentialHistogram())).total == 0


@given(st.binary(max_size=300))
def test_bytes_that_are_none_are_told_with_a_value_error(data: bytes) -> None:
    """Any bytes are a histogram, which packs to as many values, or a ValueError: never another error, never a hang."""
    try:
        found = unpack_histogram(b"\x01" + data)
    except ValueError:
        return
    assert unpack_histogram(pack_histogram(found)).total == found.total


@given(st.lists(finite, min_size=1, max_size=50), st.integers(0, 2**30), st.integers(0, 255))
def test_a_damaged_histogram_is_a_value_error_or_a_histogram(values: list[float], place: int, byte: int) -> None:
    """A changed byte, a missing end and bytes behind the end raise no other error."""
    data = bytearray(pack_histogram(histogram_of(values)))
    with pytest.raises(ValueError, match="exponential histogram"):
        unpack_histogram(bytes(data[: place % len(data)]))
    with pytest.raises(ValueError, match="bytes follow"):
        unpack_histogram(bytes([*data, byte]))
    data[place % len(data)] = byte
    with contextlib.suppress(ValueError):
        assert unpack_histogram(bytes(data)).total >= 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (ExponentialHistogram(21, 1), "scale 21"),
        (ExponentialHistogram(-11, 1), "scale -11"),
        (ExponentialHistogram(0, 0, ExponentialBuckets(1025, (1,))), "beyond all floats"),
        (ExponentialHistogram(0, 0, ExponentialBuckets(0, ()), ExponentialBuckets(-1076, (1,))), "beyond all floats"),
        (ExponentialHistogram(0, 1, minimum=2.0, maximum=1.0), "extremes"),
        (ExponentialHistogram(0, 1, minimum=-math.inf), "extremes"),
        (ExponentialHistogram(8, 0, ExponentialBuckets(0, (1,) * (MOST_BUCKETS + 1))), "1001 buckets"),
    ],
)
def test_what_cannot_be_is_refused(wrong: ExponentialHistogram, named: str) -> None:
    """A scale, a bucket, an extreme or a number of buckets that no histogram of floats has is a ValueError."""
    with pytest.raises(ValueError, match=named):
        unpack_histogram(pack_histogram(wrong))


def test_more_bytes_than_any_histogram_has_are_not_read() -> None:
    """The size is bounded before a byte is read."""
    with pytest.raises(ValueError, match="bytes"):
        unpack_histogram(b"\x01" * (MOST_BYTES + 1))


def test_a_sample_takes_few_bytes() -> None:
    """An interval of a thousand steps that take 10 ms, give or take 2 %, has fewer than 100 bytes; one value, 30."""
    values = statistics.NormalDist(0.010, 0.0002).samples(1000, seed=1)
    assert len(pack_histogram(histogram_of(values))) < 100
    assert len(pack_histogram(histogram_of([0.010]))) < 30
