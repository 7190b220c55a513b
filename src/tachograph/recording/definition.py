"""Definitions: what is known of each metric of an execution, and whether what is said now agrees with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from tachograph.recording.chart import MetricGroup, MetricScale
from tachograph.recording.points import AttributeValue

Look = TypeVar("Look", MetricGroup, MetricScale)


class Definition(NamedTuple):
    """What was said of a metric. A group or scale that is only named, or None, leaves open what it looks like."""

    key: str
    group: MetricGroup | None
    scale: MetricScale | None

    def attributes(self) -> dict[str, AttributeValue]:
        """Return what the journal says of the metric; what was left open is left out."""
        group, scale = self.group, self.scale
        found: dict[str, AttributeValue | None] = {"metric": self.key}
        if group is not None:
            found |= {"group": group.name, "x_units": group.units, "x_lower": group.lower, "x_upper": group.upper}
        if scale is not None:
            found |= {"scale": scale.name, "units": scale.units, "lower": scale.lower, "upper": scale.upper}
            found["progress"] = scale.progress or None
        return {key: value for key, value in found.items() if value is not None}


class Definitions:
    """The definitions of one execution. Scale names are scoped to their group; a nameless scale is the metric's own."""

    def __init__(self) -> None:
        self._said: dict[str, Definition] = {}
        self._groups: dict[str, MetricGroup] = {}
        self._scales: dict[tuple[str, str], MetricScale] = {}
        self._known: dict[str, Definition] = {}  # as said, with what others of the group and the scale have said
        # Whom it concerns that a group or a scale looks different; a metric that has moved on may still be among them.
        self._in_group: dict[str, dict[str, None]] = {}
        self._on_scale: dict[tuple[str, str], dict[str, None]] = {}

    def check(self, wanted: Definition) -> Definition:
        """Return what is known of a metric, together with what is said now.

        Raises:
            ValueError: the metric has another group or scale already, or its group or scale looks different already.
        """
        key = wanted.key
        said = self._said.get(key, Definition(key, None, None))
        group = self._group(key, said.group, wanted.group)
        name = _one_name(key, "scale", said.scale, wanted.scale)
        places = [_place(key, said.group, None if said.scale is None else said.scale.name), _place(key, group, name)]
        known = [*(self._scales.get(place) for place in places), said.scale, wanted.scale]
        if all(scale is None for scale in known):
            return Definition(key, group, None)
        what = f"the scale of Metric {key!r}" if name is None else f"MetricScale {name!r}"
        return Definition(key, group, _one_look(what, [replace(scale, name=name) for scale in known if scale]))

    def _group(self, key: str, said: MetricGroup | None, wanted: MetricGroup | None) -> MetricGroup | None:
        name = _one_name(key, "group", said, wanted)
        if name is None:
            return None
        known = self._groups.get(name), said, wanted
        return _one_look(f"MetricGroup {name!r}", [group for group in known if group])

    def add(self, wanted: Definition) -> list[Definition]:
        """Take in what is said of a metric that records, and return each definition that is new or has changed.

        Raises:
            ValueError: as :meth:`check`.
        """
        found = self._said[wanted.key] = self.check(wanted)
        concerned: dict[str, None] = {}
        if found.group is not None:
            members = self._in_group.setdefault(found.group.name, {})
            members[found.key] = None
            if self._groups.get(found.group.name) != found.group:
                self._groups[found.group.name] = found.group
                concerned |= members
        if found.scale is not None:
            place = _place(found.key, found.group, found.scale.name)
            members = self._on_scale.setdefault(place, {})
            members[found.key] = None
            if self._scales.get(place) != found.scale:
                self._scales[place] = found.scale
                concerned |= members
        concerned[found.key] = None
        return [known for key in concerned if (known := self._look_again(key)) is not None]

    def _look_again(self, key: str) -> Definition | None:
        """Return the definition of a metric where it is another one than before."""
        known = self.check(self._said[key])
        if self._known.get(key) == known:
            return None
        self._known[key] = known
        return known

    def known(self, key: str) -> Definition:
        """Return the definition of a metric that records, with what others of its group and scale have said."""
        return self._known[key]

    def all(self) -> list[Definition]:
        """Return every definition, each with what other metrics of its group and scale have said."""
        return list(self._known.values())


def _place(key: str, group: MetricGroup | None, scale: str | None) -> tuple[str, str]:
    return ("metric", key) if scale is None else (f"group {group.name}" if group else "", scale)


def _one_name(key: str, what: str, said: MetricGroup | MetricScale | None, wanted: Any) -> str | None:
    names = [found.name for found in (said, wanted) if found is not None and found.name is not None]
    if len(set(names)) > 1:
        raise ValueError(
            f"Metric {key!r} has the {what} {names[0]!r} already, and not {names[1]!r}: within an execution, "
            f"all of one key have the same {what}"
        )
    return names[0] if names else None


def _one_look(what: str, known: Sequence[Look]) -> Look:
    configured = [found for found in known if not found.open]
    for found in configured[1:]:
        if found != configured[0]:
            raise ValueError(
                f"{what} was already defined as {configured[0]}, and not {found}: "
                "define it once, and use that object or only its name elsewhere"
            )
    return configured[0] if configured else known[-1]
