"""Our instruments in a MeterProvider of the program's own, under names that its SDK takes.

No instrument can be unregistered, so they are remembered as long as the provider lives, and the next
:class:`~tachograph.exporters.external_provider.ExternalProvider` for it takes them over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
)

from tachograph.exporters._value_replay import RecordValue, ValueReplay
from tachograph.recording.naming import UNNAMED, Kind
from tachograph.recording.own_metrics import scope_origin
from tachograph.recording.switch import switch
from tachograph.recording.values import Number

_LONGEST_NAME = 255
_UNIT = re.compile(r"[\x00-\x7F]{0,63}")

# Not empty, since the SDK takes an empty context for none and looks for the current span, which has recorded nothing.
NO_SPAN = Context({"tachograph.replay": True})


class MetricKey(NamedTuple):
    """The identity of a metric in the registry: two metrics differ in one of these."""

    scope: str
    name: str
    unit: str
    kind: Kind


class Observable:
    """An observable instrument; ``read`` is asked at each collection of each reader, None yields nothing."""

    def __init__(self) -> None:
        self.read: Callable[[], list[Observation]] | None = None

    def __call__(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Return the points of this collection."""
        read = self.read
        return read() if read is not None and switch.on else []


class ExternalHistogram(NamedTuple):
    """A synchronous histogram: views are matched with ``instrument``, ``record`` takes a value that is replayed."""

    instrument: Histogram
    record: RecordValue


class ExternalInstruments:
    """Our instruments in one provider.

    Attributes:
        replayed: distributions are replayed, for good: their histograms keep the values that they have.
        unreplayed: the number of values of each series that could not be replayed, as far as they are counted.
    """

    def __init__(self) -> None:
        self.replayed = False
        self.unreplayed: Counter[tuple[MetricKey, tuple[object, ...]]] = Counter()
        self.observables: dict[tuple[MetricKey, str], Observable] = {}
        self.histograms: dict[MetricKey, ExternalHistogram] = {}
        self.replays: dict[MetricKey, ValueReplay] = {}
        self.failed: set[tuple[MetricKey, str]] = set()
        self._meters: dict[str, Meter] = {}
        self._taken: set[tuple[str, str]] = set()

    def observe(self, provider: MeterProvider, metric: MetricKey, suffix: str, description: str) -> None:
        """Create an observable, unless it is there: a gauge or a counter, or a part of a histogram by its suffix."""
        if (metric, suffix) in self.observables or (metric, suffix) in self.failed:
            return
        self.failed.add((metric, suffix))
        meter = self.meter(provider, metric.scope)
        observable = Observable()
        if suffix == ".signed.sum":
            create: Callable[..., Any] = meter.create_observable_up_down_counter
        elif metric.kind == "gauge":
            create = meter.create_observable_gauge
        else:
            create = meter.create_observable_counter
        unit = "{value}" if suffix == ".count" else _legal_unit(metric.unit)
        made = None
        # An instrument of the program's own in a meter of this name comes back without our callback.
        while made is None or observable not in getattr(made, "_callbacks", [observable]):
            made = create(self._free_name(metric, suffix), [observable], unit, description)
        self.observables[metric, suffix] = observable
        self.failed.discard((metric, suffix))

    def histogram(
        self, provider: MeterProvider, metric: MetricKey, description: str, boundaries: tuple[float, ...]
    ) -> None:
        """Create a synchronous histogram, unless it is there; the provider's views go before ``boundaries``."""
        if metric in self.histograms or (metric, "") in self.failed:
            return
        self.failed.add((metric, ""))
        meter = self.meter(provider, metric.scope)
        # An instrument of the program's own in a meter of this name comes back, too, and stays its own.
        existing = {id(made) for made in list(getattr(meter, "_instrument_id_instrument", {}).values())}
        made: Histogram | None = None
        while made is None or id(made) in existing:
            made = meter.create_histogram(
                self._free_name(metric, ""),
                _legal_unit(metric.unit),
                description,
                explicit_bucket_boundaries_advisory=boundaries,
            )
        histogram = made

        def record(value: Number, attributes: Mapping[str, Any]) -> None:
            histogram.record(value, attributes, NO_SPAN)

        self.histograms[metric] = ExternalHistogram(histogram, record)
        self.failed.discard((metric, ""))

    def meter(self, provider: MeterProvider, scope: str) -> Meter:
        """Return the meter of a scope; once the provider was shut down it makes no new one."""
        found = self._meters.get(scope)
        if found is None:
            found = self._meters[scope] = provider.get_meter(scope or UNNAMED, *scope_origin(scope))
        return found

    def _free_name(self, metric: MetricKey, suffix: str) -> str:
        """Return a name that the SDK takes, and that nothing else of ours in the scope has: it tells no case apart."""
        legal = re.sub(r"[^-_./a-zA-Z0-9]+", "_", metric.name + suffix)
        if not legal[0].isalpha():
            legal = "metric_" + legal.lstrip("_")
        number = 1
        while True:
            ending = f"_{number}" if number > 1 else ""
            name = legal[: _LONGEST_NAME - len(ending)] + ending
            if (metric.scope, name.lower()) not in self._taken:
                self._taken.add((metric.scope, name.lower()))
                return name
            number += 1


def _legal_unit(unit: str) -> str:
    return unit if _UNIT.fullmatch(unit) else ""


_of_providers: WeakKeyDictionary[MeterProvider, ExternalInstruments] = WeakKeyDictionary()


def instruments_in(provider: MeterProvider) -> ExternalInstruments:
    """Return our instruments in this provider, those of earlier times included."""
    return _of_providers.setdefault(provider, ExternalInstruments())
