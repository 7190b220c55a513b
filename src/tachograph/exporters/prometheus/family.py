"""Families: the series under one ``# TYPE`` on the page, from however many scopes and libraries, and their clashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.exporters.prometheus._external import ExternalFamily, ExternalKind
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import legible
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import prometheus_name
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import MetricPoints
from tachograph.recording.registry import Registry

TARGET_INFO = "target_info"
_MOST_COUNTED = 10_000  # series and metrics left out that a page remembers

# OpenMetrics 1.0, "Suffixes": the ends of the names of a family's samples, by type. A family keeps these names and its
# own to itself.
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "unknown": ("",),
    "stateset": ("",),
    "info": ("_info",),
    "summary": ("", "_sum", "_count", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
}
_CLASSIC_SUFFIXES = {"summary": ("_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}
_IN_CLASSIC: Mapping[str, ExternalKind] = {"info": "gauge", "stateset": "gauge", "gaugehistogram": "histogram"}
# Kinds whose OpenMetrics name lacks a suffix, and what the family is where that name belongs to another one.
SHORTENED = {"counter": ("_total", "unknown"), "info": ("_info", "gauge")}


class Conflicts:
    """Everything that one page has left out so far, so that a scrape each second counts nothing twice.

    Args:
        registry: where it is counted.
        destination: the label under which it is.
        page: the page's name in the log.
    """

    def __init__(self, registry: Registry, destination: str, page: str) -> None:
        self._registry = registry
        self._destination = destination
        self._page = page
        self._counted: set[object] = set()
        self._log_once = LogOnce()

    def clash(self, name: str, why: str, count: int = 1, which: object = None) -> None:
        """Count series of a family that clash with another one; ``which`` tells them from all others."""
        if self._is_new(which or (name, why)):
            self._registry.count_dropped("name_conflict", self._destination, count)
            message = (
                "%s: %s %s; skipping the later one (further warnings are suppressed; see "
                "tachograph_dropped_total on /metrics)"
            )
            self._log_once(name, message, self._page, name, why)

    def duplicate(self, name: str, labels: str, which: object) -> None:
        """Count a series that has the name and the labels of another one; ``which`` tells it from all others."""
        self.clash(name, f"has two series with the labels {{{labels}}}", which=which)

    def left_out(self, reason: Reason, metric: str, count: int = 1) -> None:
        """Count a metric that cannot be written; ``metric`` names it, in the log, too."""
        if self._is_new((metric, reason)):
            self._registry.count_dropped(reason, self._destination, count)
            self._log_once((metric, reason), "%s: %s is skipped: %s", self._page, metric, reason.replace("_", " "))

    def _is_new(self, key: object) -> bool:
        if key in self._counted or len(self._counted) >= _MOST_COUNTED:
            return False
        self._counted.add(key)
        return True


@dataclass(slots=True)
class Family:
    """One metric family.

    Attributes:
        name: the name of its samples, without ``_bucket``, ``_sum`` and ``_count``.
        kind: ``counter``, ``gauge``, ``histogram``, or another one of OpenMetrics for a family from elsewhere.
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
    conflicts: Conflicts,
    breathe: Callable[[], None],
) -> tuple[Family, list[Family]]:
    """Return ``target_info`` and the other families in the order in which they came; no two clash.

    Args:
        metrics: everything that was recorded.
        external: everything from other libraries' instruments and the program's prometheus_client. Another
            ``target_info`` becomes part of ours.
        form: the format, on which names and kinds depend.
        conflicts: counts the series that are left out: another kind of metric has the name already, and the first one
            stays.
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
            conflicts.clash(name, f"is already a {family.kind}, not a {metric.kind}", len(metric.points))
    for other in external:
        breathe()
        kind = other.kind if form.openmetrics else _IN_CLASSIC.get(other.kind, other.kind)
        family = target if other.name == TARGET_INFO else found.get(other.name)
        if family is None:
            family = found[other.name] = Family(other.name, kind, other.description, other.unit)
        if family.kind == kind or family is target:
            family.external.append(other)
        else:
            conflicts.clash(other.name, f"is already a {family.kind}, not a {kind}", other.series)
    every = [target, *found.values()]
    (_name_for_openmetrics if form.openmetrics else _name_for_classic)(every)
    claimed: set[str] = set()
    kept = []
    for family in every:
        breathe()
        suffixes = SUFFIXES[family.written_kind] if form.openmetrics else _CLASSIC_SUFFIXES.get(family.written_kind, ())
        claims = {family.header, *(family.header + suffix for suffix in suffixes)}
        if claims.isdisjoint(claimed):
            claimed |= claims
            kept.append(family)
        else:
            why = f"clashes with {sorted(claims & claimed)} of another metric"
            conflicts.clash(family.name, why, family.series)
    return target, kept[1:]


def _name_for_classic(found: Iterable[Family]) -> None:
    for family in found:
        family.header = family.name
        kind = _IN_CLASSIC.get(family.kind, family.kind)
        family.written_kind = "untyped" if kind == "unknown" else kind


def _name_for_openmetrics(found: Sequence[Family]) -> None:
    """Set the names and kinds behind ``# TYPE``.

    A counter's OpenMetrics name is without ``_total``, that of an info without ``_info``. If another family has that
    name, or where there is nothing else in it, the counter stays under its own name as a family of unknown type, the
    info as a gauge.
    """
    taken = {
        family.name + suffix
        for family in found
        if family.kind not in SHORTENED
        for suffix in ("", *SUFFIXES[family.kind])
    }
    for family in found:
        family.header, family.written_kind = family.name, family.kind
        if family.kind in SHORTENED:
            suffix, otherwise = SHORTENED[family.kind]
            base = family.name.removesuffix(suffix)
            claims = {base, *(base + ending for ending in SUFFIXES[family.kind] if ending != suffix)}
            if base not in ("", family.name) and taken.isdisjoint(claims):
                family.header = base
                taken |= claims
            else:
                family.written_kind = otherwise
