"""The lines of one series on the page: what is constant in them, made once, and their numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import (
    SCOPE_LABEL,
    boundary,
    label_names,
    label_text,
    number,
    sample,
    sum_is_counter,
)
from tachograph.hub._series import Labels
from tachograph.recording.summary import Exemplar
from tachograph.recording.values import Number
from tachograph.runs.buckets import Buckets

_PAIRS = 2**17  # labels whose text is kept: those of 200,000 series repeat each other


class Row(NamedTuple):
    """The constant parts of a series' lines.

    Attributes:
        labels: all labels, as they stand between the braces.
        start: of a number the line up to the value; of a histogram that of a bucket up to the bound.
        total: of a histogram the line of its sum up to the value.
        values: the same of its count.
    """

    labels: str
    start: str
    total: str = ""
    values: str = ""


def row(name: str, scope: str, labels: Labels, form: Format, *, is_histogram: bool) -> Row:
    """Return the row of a series in the family ``name``."""
    text = _text(scope, labels, form.utf8, "le" if is_histogram else "")
    if not is_histogram:
        return Row(text, sample(name, text))
    bucket = sample(name + "_bucket", f'{text},le=""' if text else 'le=""').removesuffix('"} ')
    return Row(text, bucket, sample(name + "_sum", text), sample(name + "_count", text))


def number_line(of: Row, value: Number) -> str:
    """Return the line of a gauge or a counter."""
    return f"{of.start}{number(value)}\n"


def histogram_lines(of: Row, value: Buckets, exemplars: Iterable[Exemplar], form: Format) -> str:
    """Return the lines of a histogram."""
    counts: list[object] = [*value.at_most(), value.count]
    if form.openmetrics:
        for exemplar in sorted(exemplars, key=lambda exemplar: exemplar.time_unix_nano):
            place = bisect_left(value.bounds, exemplar.value)
            ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
            when = exemplar.time_unix_nano / 1e9
            counted = value.count if place == len(value.bounds) else value.at_most()[place]
            counts[place] = f"{counted} # {{{ids}}} {number(exemplar.value)} {when:.3f}"
    start = of.start
    bounds = _bounds(value.bounds, form.openmetrics)
    lines = [f'{start}{bound}"}} {count}\n' for bound, count in zip(bounds, counts, strict=True)]
    if not form.openmetrics or sum_is_counter(value.total, value.bounds):
        lines.append(f"{of.total}{number(value.total)}\n{of.values}{value.count}\n")
    return "".join(lines)


@lru_cache(maxsize=1024)
def _bounds(bounds: tuple[float, ...], openmetrics: bool) -> tuple[str, ...]:
    return (*(boundary(bound, openmetrics=openmetrics) for bound in bounds), "+Inf")


def _text(scope: str, labels: Labels, utf8: bool, reserved: str) -> str:
    pairs = [_pair(SCOPE_LABEL, scope, utf8, reserved), *[_pair(key, value, utf8, reserved) for key, value in labels]]
    found = dict(filter(None, pairs))
    if len(found) < len(pairs) - pairs.count(None):  # two keys that become one label share it
        own = label_names(labels, utf8=utf8, reserved=reserved)
        return label_text({**label_names(((SCOPE_LABEL, scope),), utf8=True), **own})
    return ",".join([found[name] for name in sorted(found)])


@lru_cache(maxsize=_PAIRS)
def _pair(key: str, value: str, utf8: bool, reserved: str) -> tuple[str, str] | None:
    """Return a label's name and its text; None where it is empty."""
    for name, text in label_names(((key, value),), utf8=utf8, reserved=reserved).items():
        return name, label_text({name: text})
    return None
