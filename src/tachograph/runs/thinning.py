"""Thinning of a run's file that is too large: first the samples of its series, then the longest curves of gauges."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from itertools import zip_longest
from math import isfinite
from operator import itemgetter

from tachograph.recording.exponential import ExponentialHistogram
from tachograph.runs.blocks import ODD_VALUES, THINNED, Block, Sample, kind_of, outline, pack, told, unpack
from tachograph.runs.curve_writer import FINAL, FULL, insert_block
from tachograph.runs.queries import StoredSample, read_samples
from tachograph.runs.spread import joined, packed, unpacked
from tachograph.runs.store import Store

SAMPLE_BYTES = 28  # of a sample in the file, measured; its spread comes on top
LEAST_SAMPLES = 1000  # of a series, which it keeps in any case: enough for a chart
MOST_POINTS = 20_000  # of a curve
_SHARE = 8  # of a file that its samples may always have, one in so many bytes: events take all that they need
_SAMPLES_AT_ONCE = 4096  # in one transaction
_SAMPLES_LOGGED = 2**17  # that are gone, between two checkpoints of the log
_POINTS_AT_ONCE = 1_000_000  # that are read in one call

_SERIES = "SELECT id, shape FROM series"
_SAMPLES = "SELECT count(*), coalesce(sum(length(spread)), 0) FROM sample WHERE series = ?"
_LONG_CURVES = (
    "SELECT curve, sum(n) AS points FROM block JOIN curve ON curve.id = curve JOIN stream ON stream.id = curve.stream"
    " WHERE stream.name LIKE '%.%' AND level >= 2 GROUP BY curve"
    " HAVING points > ? AND max(form LIKE '%\"qcount\"%') ORDER BY points DESC"
)
_FINAL_BLOCKS = "SELECT id, branch FROM block WHERE curve = ? AND level >= ? ORDER BY branch, seq0"


def thin_samples(store: Store, most_bytes: int, *, floor: int = LEAST_SAMPLES) -> int:
    """Thin the older half of each series' samples if the file is too large; return how many were removed.

    Of two neighbors one is kept; a histogram's differences are added up. Samples stay as they are if other data fills
    the file: they may always have an eighth of the limit. Events are never thinned.

    Args:
        store: the file.
        most_bytes: of its content.
        floor: the number of samples that each series keeps at least.

    Raises:
        StoreError: it could not be written.
    """
    if store.size() <= most_bytes:
        return 0
    # A query each, so that writers need not wait for all of them.
    series = [(number, shape, *store.read(_SAMPLES, number)[0]) for number, shape in store.read(_SERIES)]
    if sum(count * SAMPLE_BYTES + spread_bytes for _, _, count, spread_bytes in series) <= most_bytes // _SHARE:
        return 0
    removed = 0
    logged = 0
    for number, shape, count, _ in series:
        if count - count // 4 >= floor:
            fewer = _thin_series(store, number, count // 2, is_histogram=shape == "histogram")
            removed += fewer
            logged += fewer
        if logged >= _SAMPLES_LOGGED:
            store.checkpoint()
            logged = 0
    return removed


def _thin_series(store: Store, series: int, older: int, *, is_histogram: bool) -> int:
    """Join neighbors among the ``older`` first samples of a series; return how many were removed."""
    removed = 0
    after = -1
    while older > 1:
        samples = list(read_samples(store.read, series, low=after + 1, limit=min(older, _SAMPLES_AT_ONCE)))
        if not samples:
            break
        older -= _SAMPLES_AT_ONCE
        pairs = zip_longest(samples[::2], samples[1::2])
        kept = [_join_samples(one, two) if is_histogram else two or one for one, two in pairs]
        after = samples[-1].time
        with store.transaction() as connection:  # delete all of them: gaps within the pages would free none
            span = (series, samples[0].time, after)
            connection.execute("DELETE FROM sample WHERE series = ? AND time BETWEEN ? AND ?", span)
            rows = [(series, *sample) for sample in kept]
            connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", rows)
        removed += len(samples) - len(kept)
    return removed


def _join_samples(one: StoredSample, two: StoredSample | None) -> StoredSample:
    """Return one sample of a histogram for two neighbors."""
    if two is None:
        return one
    spread = one.spread if two.spread is None else two.spread
    if one.spread is not None and two.spread is not None:
        parts: list[ExponentialHistogram] = []
        for data in (one.spread, two.spread):
            with contextlib.suppress(ValueError):  # it is damaged: the other one stays
                parts.append(unpacked(data))
        spread = packed(joined(parts)) if parts else None
    return StoredSample(two.time, (one.value or 0) + (two.value or 0), (one.total or 0) + (two.total or 0), spread)


def thin_points(store: Store, most_bytes: int, *, most: int = MOST_POINTS) -> int:
    """Thin curves of gauges if the file is too large, the longest first; return how many points were removed.

    Neighbors become one point, with the extremes of all and their x, and the number of their values. Exact points are
    never thinned: those of a Metric, of ``log()`` and of MetricsLogger. So only packed curves are, and of these the
    ones with intervals.

    Args:
        store: the file.
        most_bytes: of its content.
        most: points that a curve keeps at most.

    Raises:
        StoreError: it could not be written.
    """
    if store.size() <= most_bytes:
        return 0
    removed = 0
    read = 0
    for curve, points in store.read(_LONG_CURVES, most):
        if read > _POINTS_AT_ONCE or store.size() <= most_bytes:  # the rest follows in the next call
            break
        read += points
        removed += _thin_curve(store, curve, -(-points // most))
        store.checkpoint()
    return removed


def _thin_curve(store: Store, curve: int, group: int) -> int:
    """Join each ``group`` neighbors in the full blocks of a curve; return how many points were removed."""
    removed = 0
    branch = 0
    sources: list[tuple[int]] = []
    kept: list[Sample] = []
    for number, of_branch in [*store.read(_FINAL_BLOCKS, curve, FINAL), (0, None)]:
        if sources and (of_branch != branch or len(kept) >= FULL):
            with store.transaction() as connection:
                if connection.executemany("DELETE FROM block WHERE id = ?", sources).rowcount < len(sources):
                    raise sqlite3.OperationalError("another hub thins the same curve")
                insert_block(connection, curve, branch, (outline(kept), pack(kept)), level=THINNED)
            sources = []
            kept = []
        if of_branch is None:
            break
        try:
            ((form, pairs, rest),) = store.read("SELECT form, pairs, rest FROM block WHERE id = ?", number)
            samples = list(unpack(Block(form, pairs, rest)))
        except ValueError:  # it is damaged, and stays: readers report it
            continue
        thinned = [_join_points(samples[first : first + group]) for first in range(0, len(samples), group)]
        removed += len(samples) - len(thinned)
        branch = of_branch
        kept += thinned
        sources.append((number,))
    return removed


def _join_points(samples: Sequence[Sample]) -> Sample:
    """Return one point for several of an interval each."""
    last = samples[-1]
    if len(samples) == 1:
        return last
    count = sum(int(each.more.get("count", 1)) for each in samples)
    hidden = sum(int(each.more.get("nonfinite", 0 if isfinite(each.value) else 1)) for each in samples)
    values = [point for each in samples for point in [*told(each), (each.x, each.value)]]
    ends = [(float(value), float(x)) for x, value in values if isfinite(value)]
    more: dict[str, int | float] = {}
    if ends:
        (low, low_x), (high, high_x) = min(ends), max(ends, key=itemgetter(0))
        more |= {"min": low, "min_x": low_x, "max": high, "max_x": high_x}
    more["count"] = count
    if hidden:
        more["nonfinite"] = hidden
    kinds = {kind_of(value): name for name, value in ODD_VALUES.items()}
    for x, value in sorted(values, key=itemgetter(0)):
        if not isfinite(value):
            more.setdefault(kinds[kind_of(value)], float(x))
    return last._replace(more=more)
