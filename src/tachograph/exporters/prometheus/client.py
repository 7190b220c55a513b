"""The program's own metrics in ``prometheus_client.REGISTRY``, for our page.

They are written as prometheus_client writes them: in the classic text an info and a stateset are gauges, ``_created``,
``_gsum`` and ``_gcount`` families of their own.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from tachograph.exporters.prometheus._external import ExternalFamily, ExternalKind, ExternalSample
from tachograph.exporters.prometheus.collector import PrometheusCollector, on_page
from tachograph.exporters.prometheus.family import SHORTENED, SUFFIXES, TARGET_INFO
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import SCOPE_LABEL, boundary, label_names, label_text, legible, number
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import UNNAMED
from tachograph.recording.own_metrics import Reason
from tachograph.recording.registry import Registry

PATIENCE = 2.0  # seconds that their collectors have for one page, which is less than any scraper waits
_DEFAULTS = ("PROCESS_COLLECTOR", "PLATFORM_COLLECTOR", "GC_COLLECTOR")
_SAMPLES_A_LOOK = 8  # samples between two looks at the clock
_LONGEST_EXEMPLAR = 128  # characters of its labels: OpenMetrics 1.0, "Exemplars"

_OPENMETRICS_ONLY = ("_created", "_gsum", "_gcount")
_BUCKETS = {("histogram", "_bucket"), ("gaugehistogram", "_bucket")}
_UNIT = re.compile(r"[a-zA-Z0-9_:]+")


def imported_registry() -> Any | None:
    """Return prometheus_client's ``REGISTRY`` where the program has imported it already; it is never imported here."""
    return getattr(sys.modules.get("prometheus_client"), "REGISTRY", None)


class ClientRegistry:
    """The collectors that the program has registered in prometheus_client.

    Those on the page already are left out: our own collector, and the samples of OpenTelemetry's Prometheus readers
    whose scope is one of our groups. prometheus_client's own ``process_*`` and ``python_*`` come along as soon as the
    program has registered anything: the module is imported by others, too, us among them.

    A collector that raises, or does not answer in time, is left out: counted each time as an error at
    ``prometheus_client``, and said once. One that hangs is not asked again before it has answered.

    Args:
        registry: ours.
        find: returns the program's registry; None where there is none.
        patience: seconds that all collectors together have for a page.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        find: Callable[[], Any | None] = imported_registry,
        patience: float = PATIENCE,
    ) -> None:
        self._registry = registry
        self._find = find
        self._patience = patience
        self._lock = threading.Lock()
        self._late: list[_Collection] = []
        self._log_once = LogOnce()

    def families(
        self, form: Format, breathe: Callable[[], None], left_out: Callable[[Reason, str], None]
    ) -> Iterator[ExternalFamily]:
        """Collect, and yield everything in a format.

        Args:
            form: the text format.
            breathe: called after every few samples.
            left_out: called with the reason and the metric that cannot be written.
        """
        found = self._find()
        if found is None:
            return
        info = found.get_target_info()
        if info:
            labels = label_names(sorted(info.items()), utf8=form.utf8)
            yield ExternalFamily(TARGET_INFO, "info", "", "", [ExternalSample(TARGET_INFO, labels, 1)])
        scopes = {group or UNNAMED for group in self._registry.groups}
        for metric in self._collect(self._wanted(found, bool(info))):
            try:
                families = _families(metric, form, breathe, scopes)
            except Exception as error:  # noqa: BLE001 - the border to their collectors: one metric must not cost the page
                pass_on(error)
                name = getattr(metric, "name", None)
                name = name if isinstance(name, str) else type(metric).__name__
                left_out("not_exportable", f"prometheus_client's {name!r:.100}")
                continue
            yield from families

    def _wanted(self, found: Any, used: bool) -> list[Any]:
        # There is no public way to ask collectors one by one; a registry is a collector, too.
        collectors = [
            collector
            for collector in list(getattr(found, "_collector_to_names", (found,)))
            if not (isinstance(collector, PrometheusCollector) and collector.registry is self._registry)
        ]
        module = sys.modules.get("prometheus_client")
        defaults = {id(getattr(module, name, None)) for name in _DEFAULTS}
        return collectors if used or any(id(collector) not in defaults for collector in collectors) else []

    def _collect(self, collectors: Iterable[Any]) -> list[Any]:
        with self._lock:
            self._late = [collection for collection in self._late if collection.is_alive()]
            stuck = [collection.current for collection in self._late]
        asked = [collector for collector in collectors if not any(collector is other for other in stuck)]
        collection = _Collection(asked, self._registry, self._failed)
        if asked:
            collection.start()
            collection.join(self._patience)
        if collection.current is not None:
            collection.abandoned = True
            with self._lock:
                self._late.append(collection)
            stuck.append(collection.current)
        for collector in stuck:
            self._failed(collector, f"no response within {self._patience:g} s")
        return list(collection.found)

    def _failed(self, collector: object, why: object) -> None:
        self._registry.count_error("prometheus_client")
        name = f"{type(collector).__module__}.{type(collector).__qualname__}"
        message = (
            "/metrics: skipping prometheus_client's collector %s: %.200s (further warnings are suppressed; see "
            "tachograph_errors_total on /metrics)"
        )
        self._log_once(name, message, name, why)


class _Collection(threading.Thread):
    """One round of asking collectors, in a thread of its own: a collector may hang."""

    def __init__(self, collectors: Iterable[Any], registry: Registry, failed: Callable[[object, object], None]) -> None:
        super().__init__(name="tachograph prometheus_client", daemon=True)
        self.found: list[Any] = []
        self.current: object | None = None
        self.abandoned = False
        self._collectors = collectors
        self._registry = registry
        self._failed = failed

    def run(self) -> None:
        """Ask each collector; one that raises costs nothing but its own metrics that were still to come."""
        on_page.registry = self._registry
        pace = GilYield()
        for collector in self._collectors:
            self.current = collector
            try:
                for metric in collector.collect():
                    if self.abandoned:
                        return
                    self.found.append(metric)
                    pace()
            except Exception as error:  # noqa: BLE001 - the border to their collectors
                pass_on(error)
                self._failed(collector, " ".join("".join(traceback.format_exception_only(error)).split()))
        self.current = None


def _families(metric: Any, form: Format, breathe: Callable[[], None], ours: AbstractSet[str]) -> list[ExternalFamily]:
    """Return the families that a metric is in this format: mostly one.

    A sample that does not belong under the metric's type is of unknown type under its own name; those of the scopes
    that are ours are left out.
    """
    name = str(metric.name)
    unit = metric.unit if metric.type not in ("info", "stateset") and _UNIT.fullmatch(metric.unit or "") else ""
    found: dict[tuple[str, ExternalKind], list[ExternalSample]] = {}
    for index, sample in enumerate(metric.samples):
        if index % _SAMPLES_A_LOOK == 0:
            breathe()
        if sample.labels.get(SCOPE_LABEL) in ours:
            continue
        if getattr(sample, "native_histogram", None) is not None:
            raise ValueError(name)
        suffix = sample.name[len(name) :] if sample.name.startswith(name) else None
        labels = label_names(sorted(sample.labels.items()), utf8=form.utf8)
        kind: ExternalKind = metric.type
        if suffix is None or not _belongs(kind, suffix, labels, _named(name, utf8=form.utf8)):
            home, kind = sample.name, "unknown"
        elif suffix in _OPENMETRICS_ONLY and not form.openmetrics:
            home, kind = sample.name, "gauge"
        else:
            home = name + (SHORTENED[kind][0] if kind in SHORTENED else "")
        found.setdefault((_named(home, utf8=form.utf8), kind), []).append(_sample(sample, labels, form, kind, suffix))
    description = str(metric.documentation or name)
    return [ExternalFamily(home, kind, unit, description, samples) for (home, kind), samples in found.items()]


def _belongs(kind: ExternalKind, suffix: str, labels: Mapping[str, str], name: str) -> bool:
    """Tell whether a sample is one that OpenMetrics knows for the type; a scraper may refuse the page for another."""
    if suffix not in SUFFIXES[kind]:
        return False
    if suffix == "_bucket":
        return _is_between(labels.get("le"), float("-inf"), float("inf"))
    if kind == "summary" and not suffix:
        return _is_between(labels.get("quantile"), 0, 1)
    return kind != "stateset" or name in labels


def _is_between(text: str | None, least: float, most: float) -> bool:
    try:
        return text is not None and least <= float(text) <= most
    except ValueError:
        return False


def _sample(
    sample: Any, labels: dict[str, str], form: Format, kind: ExternalKind, suffix: str | None
) -> ExternalSample:
    value = sample.value if type(sample.value) in (int, float) else float(sample.value)
    le = labels.pop("le", "") if (kind, suffix) in _BUCKETS else ""
    if form.openmetrics and le:
        le = boundary(float(le), openmetrics=True)
    if form.openmetrics and kind == "summary" and not suffix:
        labels["quantile"] = boundary(float(labels["quantile"]), openmetrics=True)
    timestamp = ""
    if sample.timestamp is not None:
        milliseconds = int(float(sample.timestamp) * 1000)
        timestamp = f" {milliseconds / 1000:.3f}" if form.openmetrics else f" {milliseconds}"
    carries = form.openmetrics and ((kind, suffix) in _BUCKETS or (kind, suffix) == ("counter", "_total"))
    exemplar = _exemplar(sample.exemplar, form) if carries and sample.exemplar else ""
    return ExternalSample(_named(sample.name, utf8=form.utf8), labels, value, le, timestamp, exemplar)


def _exemplar(exemplar: Any, form: Format) -> str:
    labels = label_names(sorted(exemplar.labels.items()), utf8=form.utf8)
    if sum(len(name) + len(text) for name, text in labels.items()) > _LONGEST_EXEMPLAR:
        return ""
    when = "" if exemplar.timestamp is None else f" {int(float(exemplar.timestamp) * 1000) / 1000:.3f}"
    return f" # {{{label_text(labels)}}} {number(float(exemplar.value))}{when}"


@lru_cache(maxsize=4096)
def _named(name: str, *, utf8: bool) -> str:
    """Return a name as the scraper takes it, escaped as prometheus_client does: each other character is one ``_``."""
    if not name:
        raise ValueError("a sample has no name")
    return legible(name) if utf8 else re.sub(r"^[0-9]|[^a-zA-Z0-9_:]", "_", name)
