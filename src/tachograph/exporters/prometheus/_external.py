"""Families that come from elsewhere: from SDK instruments of other libraries, from the program's prometheus_client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from tachograph.exporters.prometheus.text import sum_is_counter
from tachograph.recording.values import Number

ExternalKind = Literal[
    "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown"
]  # fmt: skip


class ExternalSample(NamedTuple):
    """One line, ready but for the labels of the page.

    Attributes:
        name: the whole name, with ``_bucket``, ``_created`` and such.
        labels: all but ``le`` of a bucket.
        le: as it is written; empty where the line is no bucket's.
        timestamp: as it stands behind the value, with a blank before it; empty for the time of the scrape.
        exemplar: the same; only in OpenMetrics.
    """

    name: str
    labels: Mapping[str, str]
    value: Number
    le: str = ""
    timestamp: str = ""
    exemplar: str = ""


class ExternalFamily(NamedTuple):
    """Samples under one ``# TYPE``; the name is the one of the classic text format, ``_total`` included."""

    name: str
    kind: ExternalKind
    unit: str
    description: str
    samples: Sequence[ExternalSample]

    @property
    def series(self) -> int:
        """How many series it has, each of which may have several lines."""
        return len(
            {frozenset(pair for pair in found.labels.items() if pair[0] != "quantile") for found in self.samples}
        )

    def with_sums_that_count(self) -> Sequence[ExternalSample]:
        """Return the samples without the sums that OpenMetrics has no form for: see :func:`sum_is_counter`."""
        if self.kind not in ("histogram", "summary"):
            return self.samples
        refused = set()
        for found in self.samples:
            falls = found.name == self.name + "_sum" and not sum_is_counter(found.value, ())
            if falls or (found.le and float(found.le) < 0):
                refused.add(frozenset(found.labels.items()))
        if not refused:
            return self.samples
        ends = ("_sum", "_count") if self.kind == "histogram" else ("_sum",)
        names = [self.name + end for end in ends]
        return [
            found for found in self.samples if found.name not in names or frozenset(found.labels.items()) not in refused
        ]
