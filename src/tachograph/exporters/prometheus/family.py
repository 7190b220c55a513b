"""Families: what stands under one ``# TYPE`` on the page, from however many scopes and libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tachograph.exporters.prometheus._external import ExternalFamily
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import legible
from tachograph.recording.naming import prometheus_name
from tachograph.recording.points import MetricPoints

TARGET_INFO = "target_info"


class Conflict(Protocol):
    """Called with a family's name, what is wrong with it, and how many series are left out."""

    def __call__(self, name: str, why: str, count: int) -> None:
        """Count them."""


# The names of its samples that a family keeps to itself, by kind: OpenMetrics 1.0, "Suffixes".
_SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
    "untyped": ("",),
}
_OPENMETRICS_SUFFIXES = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("", "_bucket", "_gsum", "_gcount"),
    "summary": ("", "_sum", "_count", "_created"),
    "stateset": ("",),
    "info": ("", "_info"),
    "unknown": ("",),
}
_IN_CLASSIC = {"info": "gauge", "stateset": "gauge", "unknown": "untyped"}
# Kinds whose OpenMetrics name lacks a suffix, and what the family is where that name belongs to another one.
_SHORTENED = {"counter": ("_total", "unknown"), "info": ("_info", "gauge")}


@dataclass(slots=True)
class Family:
    """One metric family.

    Attributes:
        name: the name of its samples, without ``_bucket``, ``_sum`` and ``_count``.
        kind: ``counter``, ``gauge``, ``histogram``, or another one of OpenMetrics for what comes from elsewhere.
        header: the name behind ``# TYPE``; in OpenMetrics without ``_total``.
        written_kind: the word behind ``# TYPE``.
        unit: the suffix of the header that is its unit, or the empty string.
    """

    name: str
    kind: str
    description: str
    unit: str
    header: str = ""
    written_kind: str = ""
    metrics: list[MetricPoints] = field(default_factory=list)
    external: list[ExternalFamily] = field(default_factory=list)

    @property
    def series(self) -> int:
        """How many series it has, each of which may have several lines."""
        return sum(len(metric.points) for metric in self.metrics) + sum(other.series for other in self.external)


def families(
    metrics: Sequence[MetricPoints],
    external: Iterable[ExternalFamily],
    form: Format,
    conflict: Conflict,
    breathe: Callable[[], None],
) -> tuple[Family, list[Family]]:
    """Return ``target_info`` and the other families in the order in which they came; no two clash.

    Args:
        metrics: what the registry holds.
        external: what other libraries' instruments and the program's prometheus_client hold. Another ``target_info``
            becomes part of ours.
        form: the format, on which the names depend.
        conflict: called with the family's name, what is wrong with it, and how many series are left out: another kind
            of metric has the name already. The first one stays.
        breathe: called after each metric, to let other threads run.
    """
    target = Family(TARGET_INFO, "info", "Target metadata", "")
    found: dict[str, Family] = {}
    for metric in metrics:
        breathe()
        name = prometheus_name(legible(metric.name), metric.unit, metric.kind, utf8=form.utf8)
        family = found.get(name)
        if family is None:
            unit = prometheus_name("", metric.unit, "gauge")
            family = found[name] = Family(name, metric.kind, metric.description or metric.name, unit)
        if family.kind == metric.kind:
            family.metrics.append(metric)
        else:
            conflict(name, f"is a {family.kind} already, not a {metric.kind}", len(metric.points))
    for other in external:
        breathe()
        family = target if other.name == TARGET_INFO else found.get(other.name)
        if family is None:
            family = found[other.name] = Family(other.name, other.kind, other.description, other.unit)
        if family.kind == other.kind or family is target:
            family.external.append(other)
        else:
            conflict(other.name, f"is a {family.kind} already, not a {other.kind}", other.series)
    return target, _without_clashes(target, list(found.values()), form, conflict, breathe)


def _without_clashes(
    target: Family, found: list[Family], form: Format, conflict: Conflict, breathe: Callable[[], None]
) -> list[Family]:
    _name_headers(target, found, form)
    suffixes = _OPENMETRICS_SUFFIXES if form.openmetrics else _SUFFIXES
    claimed: set[str] = set()
    kept = []
    for family in (target, *found):
        breathe()
        claims = {family.header + suffix for suffix in suffixes[family.written_kind]}
        if claims.isdisjoint(claimed):
            claimed |= claims
            kept.append(family)
        else:
            why = f"clashes with {sorted(claims & claimed)} of another metric"
            conflict(family.name, why, family.series)
    return kept[1:]


def _name_headers(target: Family, found: list[Family], form: Format) -> None:
    """Set what stands behind ``# TYPE``.

    A counter's OpenMetrics name is without ``_total``, that of an info without ``_info``. Where another family has that
    name, or where there is nothing else in it, the counter stays what it is as a family of unknown type, the info as a
    gauge.
    """
    for family in (target, *found):
        family.header, family.written_kind = family.name, family.kind
        if not form.openmetrics:
            family.written_kind = _IN_CLASSIC.get(family.kind, family.kind)
    if not form.openmetrics:
        return
    taken = {
        family.name + suffix
        for family in found
        if family.kind not in _SHORTENED
        for suffix in _OPENMETRICS_SUFFIXES[family.kind]
    }
    for family in (target, *found):
        if family.kind in _SHORTENED:
            suffix, otherwise = _SHORTENED[family.kind]
            base = family.name.removesuffix(suffix)
            claims = {base + ending for ending in _OPENMETRICS_SUFFIXES[family.kind] if ending != suffix}
            if base not in ("", family.name) and taken.isdisjoint(claims):
                family.header = base
                taken |= claims
            else:
                family.written_kind = otherwise
