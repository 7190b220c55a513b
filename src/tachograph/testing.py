"""Capture recorded values in tests, without an exporter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tachograph.recording import registry as registries
from tachograph.recording.accumulators import Accumulator
from tachograph.recording.instrument import creation
from tachograph.recording.kept_calls import KeptCalls
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.points import AttributeValue, MetricPoints, NumberPoint, attributes_key, identity
from tachograph.recording.registry import Registry
from tachograph.recording.summary import ValueSummary
from tachograph.recording.switch import switch
from tachograph.recording.values import Number


class Captured:
    """The values recorded in a capture: those recorded so far during the block, and all of them after it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._all: list[MetricPoints] | None = None  # until the end

    def end(self) -> None:
        """Store the values as they are now, before the registry's earlier values return."""
        self._all = self._registry.collect()

    def _collected(self) -> list[MetricPoints]:
        return self._registry.collect() if self._all is None else self._all

    def value(
        self, name: str, group: str = "torchelastic", /, **attributes: AttributeValue
    ) -> Number | ValueSummary | None:
        """Return the state of one series, or None if nothing was recorded.

        Args:
            name: the recorded name, or the instrument's name.
            group: the metric group.
            **attributes: all attributes of the series; pass keys with dots as ``**{"code.function.name": …}``.

        Returns:
            A gauge's last value, a counter's sum, or a histogram's
            :class:`~tachograph.recording.summary.ValueSummary` with ``count``, ``total.value()``, ``minimum``,
            ``maximum`` and ``nonfinite``.
        """
        found = self._registry.groups.get(group)
        instrument = found.instruments.get(name) if found is not None else None
        instrument_name = instrument.name if instrument is not None else name
        wanted = identity(attributes_key(attributes))
        for metric in self._collected():
            if metric.scope == group and metric.name == instrument_name:
                for point in metric.points:
                    if identity(point.attributes) == wanted:
                        return point.value if isinstance(point, NumberPoint) else point.summary
        return None

    def names(self, group: str = "torchelastic") -> list[str]:
        """Return the names of the group's instruments that have values, sorted."""
        return sorted({metric.name for metric in self._collected() if metric.scope == group})


@contextmanager
def capture(registry: Registry = registries.default) -> Iterator[Captured]:
    """Capture the values that are recorded inside the block.

    The block starts with an empty registry. After it, the registry has its earlier values again, without the captured
    ones. Captures can be nested: an inner one does not change the values of the outer one. An export during the block
    contains the captured values. Stats, curves and events are not captured.

    Example::

        with tachograph.testing.capture() as captured:
            train_one_step()
        assert captured.value("step.success", "train") == 1
    """
    recorded, collected = switch.on, registry.collected
    if not recorded:  # a forked child: it has its parent's values, and maybe locks that nobody will release
        registry.reset()
    before = {part: part.put_aside() for part in _parts(registry)}
    creation.changes += 1  # a collection looks at each series again, for its new start
    captured = Captured(registry)
    try:
        yield captured
    finally:
        captured.end()
        for part in _parts(registry):
            part.put_aside()
            if part in before:
                part.put_back(before[part])
        creation.changes += 1
        switch.on, registry.collected = recorded, collected


def _parts(registry: Registry) -> Iterator[Accumulator | SeriesLosses | KeptCalls]:
    """Yield all objects of a registry that hold values or counts."""
    for group in list(registry.groups.values()):
        for instrument in dict.fromkeys(list(group.instruments.values())):
            yield instrument.losses
            yield from (series for _, series in instrument.all_series())
        for function in list(group.functions.values()):
            yield function.losses
            yield function.kept
            yield from (series for _, series in function.distributions())
