"""``PrometheusCollector``: everything recorded, in a registry of prometheus_client."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tachograph.exporters.prometheus.family import Conflicts, Family, families
from tachograph.exporters.prometheus.format import Format
from tachograph.exporters.prometheus.text import SCOPE_LABEL, boundary, label_names, label_text, sum_is_counter
from tachograph.identity.resource import announced, resource_attributes, series_keys, series_labels
from tachograph.recording import registry as registries
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.points import HistogramPoint, identity
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.values import as_float

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DESTINATION = "prometheus_client"
# Classic names, whatever the scraper asks prometheus_client for: a collector is not told. Families that do not clash in
# OpenMetrics clash in the classic text neither.
_FORM = Format(openmetrics=True, version="1.0.0")


class _OnPage(threading.local):
    """The registry for whose own page this thread collects: its collectors add nothing to that, wherever they are."""

    registry: Registry | None = None


on_page = _OnPage()


class PrometheusCollector:
    """A collector of prometheus_client that yields everything recorded, as ``/metrics`` shows it to a classic scraper.

    Names, units and labels are the same. Register it where the program serves its own metrics from
    (``start_http_server``, ``make_asgi_app``, ``push_to_gateway`` …); no ``start()`` is needed::

        prometheus_client.REGISTRY.register(tachograph.otel.PrometheusCollector())

    Our own page leaves it out, so that nothing is there twice. If the program's MeterProvider has OpenTelemetry's
    Prometheus reader in that registry, everything recorded is there by that way already: take one of the two. A forked
    child that records nothing yields nothing. A colon in a name is ``_`` in prometheus_client's OpenMetrics. The
    registry asks for no names when it is registered (``describe``), so that ``?name[]=`` finds none of ours.

    Args:
        resource_labels: keys of the resource attributes that are labels on each series; those of ``start()``,
            without one ``dl.rank``, ``dl.role`` and ``dl.run.id``.
        registry: Tachograph's registry to yield, for tests; by default the one of this process.
        target_info: yield ``target_info``, the rest of the resource attributes; False where the registry has one.

    Raises:
        TypeError: ``resource_labels`` is no sequence of strings, or ``registry`` is one of prometheus_client.
        ValueError: a key in ``resource_labels`` is empty.
    """

    def __init__(
        self,
        *,
        resource_labels: Sequence[str] | None = None,
        registry: Registry | None = None,
        target_info: bool = True,
    ) -> None:
        if registry is not None and not isinstance(registry, Registry):
            raise TypeError(
                f"registry= must be a tachograph.registry.Registry, not {type(registry).__name__}: a collector is put "
                "into one of prometheus_client by its register(tachograph.otel.PrometheusCollector())"
            )
        self.registry = registries.default if registry is None else registry
        self._keys = None if resource_labels is None else series_keys(resource_labels)
        self._target_info = target_info
        self._conflicts = Conflicts(self.registry, DESTINATION, "prometheus_client's registry")
        self._log_once = LogOnce()

    def describe(self) -> list[Metric]:
        """Return nothing: names come with the first values, and to register must cost nothing."""
        return []

    def collect(self) -> list[Metric]:
        """Return everything recorded so far; it raises nothing, since the program's own metrics come beside it."""
        if not (switch.on and self.registry.enabled) or on_page.registry is self.registry:
            return []
        try:
            return self._collect()
        except Exception as error:  # noqa: BLE001 - one page of the program must not fail for us
            pass_on(error)
            self.registry.count_error(DESTINATION)
            message = (
                "collecting for prometheus_client failed (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)"
            )
            self._log_once("collect", message, exc_info=True)
            return []

    def _collect(self) -> list[Metric]:
        from prometheus_client.metrics_core import Metric

        resource = announced.attributes or resource_attributes()
        keys = announced.labels if self._keys is None else self._keys
        labels = label_names(sorted(series_labels(resource, keys).items()), utf8=False)
        target, found = families(self.registry.collect(), (), _FORM, self._conflicts, lambda: None)
        metrics = []
        for family in (target, *found) if self._target_info else found:
            unit = family.unit if family.header.endswith("_" + family.unit) else ""
            metric = Metric(family.header, family.description, family.written_kind, unit)
            if family is target:
                metric.add_sample(family.name, {**labels, **label_names(sorted(resource.items()), utf8=False)}, 1)
            else:
                self._fill(metric, family, labels)
            metrics.append(metric)
        return metrics

    def _fill(self, metric: Metric, family: Family, shared: Mapping[str, str]) -> None:
        """Add the family's series; one that has the labels of an earlier one is left out."""
        seen: set[tuple[tuple[str, str], ...]] = set()
        reserved = "le" if family.kind == "histogram" else ""
        for recorded in family.metrics:
            scope = label_names(((SCOPE_LABEL, recorded.scope),), utf8=False)
            for point in recorded.points:
                labels = {**shared, **scope, **label_names(point.attributes, utf8=False, reserved=reserved)}
                key = tuple(sorted(labels.items()))
                if key in seen:
                    which = (recorded.scope, recorded.name, recorded.unit, identity(point.attributes))
                    self._conflicts.duplicate(family.name, label_text(labels), which)
                    continue
                seen.add(key)
                if isinstance(point, HistogramPoint):
                    _add_histogram(metric, family.name, labels, point)
                else:
                    metric.add_sample(family.name, labels, as_float(point.value))


def _add_histogram(metric: Metric, name: str, labels: dict[str, str], point: HistogramPoint) -> None:
    from prometheus_client.samples import Exemplar

    summary, exemplars = point.summary, point.exemplars_by_bucket()
    bounds = (*point.boundaries, math.inf)
    for place, (bound, count) in enumerate(zip(bounds, (*summary.at_most, summary.count), strict=True)):
        newest, exemplar = exemplars.get(place), None
        if newest is not None:
            ids = {"trace_id": f"{newest.trace_id:032x}", "span_id": f"{newest.span_id:016x}"}
            exemplar = Exemplar(ids, newest.value, newest.time_unix_nano / 1e9)
        where = {**labels, "le": boundary(bound, openmetrics=True)}
        metric.add_sample(name + "_bucket", where, count, None, exemplar)
    total = as_float(summary.total.value())
    if sum_is_counter(total, point.boundaries):  # the format of the page is not known here
        metric.add_sample(name + "_sum", labels, total)
        metric.add_sample(name + "_count", labels, summary.count)
