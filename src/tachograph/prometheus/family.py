"""Families: what stands under one ``# TYPE`` on the page, from however many scopes and libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tachograph.naming import prometheus_name
from tachograph.points import MetricPoints
from tachograph.prometheus.format import Format
from tachograph.prometheus.sdk import SdkFamily
from tachograph.prometheus.text import legible

TARGET_INFO = "target_info"

Conflict = Callable[[str, str, int], None]

# The names of its samples that a family keeps to itself, by kind: OpenMetrics 1.0, "Suffixes".
_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("", "_bucket", "_sum", "_count")}
_OPENMETRICS_SUFFIXES = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_sum", "_count", "_created"),
    "info": ("", "_info"),
    "unknown": ("",),
}


@dataclass(slots=True)
class Family:
    """One metric family.

    Attributes:
        name: the name of its samples, without ``_bucket``, ``_sum`` and ``_count``.
        kind: ``counter``, ``gauge`` or ``histogram``.
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
    sdk: list[SdkFamily] = field(default_factory=list)


def families(
    metrics: Sequence[MetricPoints],
    sdk: Iterable[SdkFamily],
    form: Format,
    conflict: Conflict,
    breathe: Callable[[], None],
) -> tuple[Family, list[Family]]:
    """Return ``target_info`` and the other families in the order in which they came; no two clash.

    Args:
        metrics: what the registry holds.
        sdk: what other libraries' instruments hold.
        form: the format, on which the names depend.
        conflict: called with the family's name, what is wrong with it, and how many series are left out: another kind
            of metric has the name already. The first one stays.
        breathe: called after each metric, to let other threads run.
    """
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
    for other in sdk:
        breathe()
        family = found.get(other.name)
        if family is None:
            family = found[other.name] = Family(other.name, other.kind, other.description, other.unit)
        if family.kind == other.kind:
            family.sdk.append(other)
        else:
            conflict(other.name, f"is a {family.kind} already, not a {other.kind}", other.series)
    return _without_clashes(list(found.values()), form, conflict, breathe)


def _without_clashes(
    found: list[Family], form: Format, conflict: Conflict, breathe: Callable[[], None]
) -> tuple[Family, list[Family]]:
    target = Family(TARGET_INFO, "gauge", "Target metadata", "")
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
            series = sum(len(metric.points) for metric in family.metrics) + sum(sdk.series for sdk in family.sdk)
            conflict(family.name, f"clashes with {sorted(claims & claimed)} of another metric", series)
    return kept[0], kept[1:]


def _name_headers(target: Family, found: list[Family], form: Format) -> None:
    """Set what stands behind ``# TYPE``.

    A counter's OpenMetrics name is without ``_total``. Where a gauge or a histogram has that name, or where there is
    nothing else in it, the counter stays what it is as a family of unknown type.
    """
    for family in (target, *found):
        family.header, family.written_kind = family.name, family.kind
    if not form.openmetrics:
        return
    others = {
        family.name + suffix
        for family in found
        if family.kind != "counter"
        for suffix in _OPENMETRICS_SUFFIXES[family.kind]
    }
    for family in (target, *found):
        kind, suffix = ("info", "_info") if family is target else ("counter", "_total")
        if family is target or family.kind == "counter":
            base = family.name.removesuffix(suffix)
            claims = {base + ending for ending in _OPENMETRICS_SUFFIXES[kind] if ending != suffix}
            if base not in ("", family.name) and others.isdisjoint(claims):
                family.header, family.written_kind = base, kind
            elif family is not target:
                family.written_kind = "unknown"
