"""Capture of recorded values, for tests of programs that record: no exporter is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tachograph.recording import registry as registries
from tachograph.recording.points import AttributeValue, NumberPoint, attributes_key, identity
from tachograph.recording.registry import Registry
from tachograph.recording.summary import ValueSummary
from tachograph.recording.values import Number


class Captured:
    """The values that were recorded since the capture began; read them at any time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def value(
        self, name: str, group: str = "torchelastic", /, **attributes: AttributeValue
    ) -> Number | ValueSummary | None:
        """Return the state of one series; None where nothing was recorded.

        Args:
            name: the recorded name, or the instrument's.
            group: the metric group.
            **attributes: those of the series, all of them; keys with dots go in by ``**{"code.function.name": …}``.

        Returns:
            A gauge's last value, a counter's sum, or a histogram's
            :class:`~tachograph.recording.summary.ValueSummary`, with ``count``, ``total.value()``, ``minimum``,
            ``maximum`` and ``nonfinite``.
        """
        found = self._registry.groups.get(group)
        instrument = found.instruments.get(name) if found is not None else None
        instrument_name = instrument.name if instrument is not None else name
        wanted = identity(attributes_key(attributes))
        for metric in self._registry.collect():
            if metric.scope == group and metric.name == instrument_name:
                for point in metric.points:
                    if identity(point.attributes) == wanted:
                        return point.value if isinstance(point, NumberPoint) else point.summary
        return None

    def names(self, group: str = "torchelastic") -> list[str]:
        """Return the names of the group's instruments that hold something, sorted."""
        return sorted({metric.name for metric in self._registry.collect() if metric.scope == group})


@contextmanager
def capture(registry: Registry = registries.default) -> Iterator[Captured]:
    """Capture the values that are recorded inside of the block; earlier values are forgotten.

    Example::

        with tachograph.testing.capture() as captured:
            train_one_step()
        assert captured.value("step.success", "train") == 1
    """
    registry.reset()
    yield Captured(registry)
