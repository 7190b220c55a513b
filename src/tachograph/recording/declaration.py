"""Saying what a metric is before its first value."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.recording import registry
from tachograph.recording.instrument import Instrument
from tachograph.recording.naming import Kind


def declare(
    name: str,
    *,
    group: str = "torchelastic",
    kind: Kind | None = None,
    unit: str | None = None,
    description: str = "",
    boundaries: Sequence[float] | None = None,
) -> Instrument:
    """Return the instrument for a name, with the kind, unit and buckets that you give it.

    What is left out follows from the name, as for a name that was never declared: ``step.duration.ms`` is a histogram
    in milliseconds. With a unit of your own the name keeps its suffix. Values recorded through the instrument reach
    exporters only: handlers belong to :func:`tachograph.put_metric`, which records into the same instrument.

    Args:
        name: what is recorded, 1 to 1,024 characters.
        group: the metric group.
        kind: ``"gauge"`` (the last value), ``"counter"`` (a sum) or ``"histogram"``.
        unit: in UCUM, such as ``s``, ``By``, ``{token}``; ``""`` for none.
        description: one sentence for people, shown as HELP in Prometheus.
        boundaries: upper bounds of a histogram's buckets, finite and ascending, in the unit of the values.

    Raises:
        TypeError: the name, unit, description or group is not a string, or a boundary is not a number.
        ValueError: the kind is unknown, boundaries do not ascend or belong to no histogram, the name is empty or too
            long, or the same name was recorded or declared differently before.
    """
    if not isinstance(description, str):
        raise TypeError(f"the description of {name!r:.100} must be a string, not {type(description).__name__}")
    return registry.default.group(group).declare(
        name, kind=kind, unit=unit, description=description, boundaries=boundaries
    )
