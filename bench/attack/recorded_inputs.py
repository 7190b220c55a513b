"""Inputs of the recording API: names on its page, and points as InfluxDB's lines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from random import Random
from typing import Any, NamedTuple

import hostile
import otlp_bodies
import tachograph
from in_process import ProcessKind
from line_protocol import LATEST, as_written, parse
from page_judge import FORMATS, complaints
from tachograph.exporters.influxdb._line import line
from tachograph.exporters.prometheus.format import negotiate
from tachograph.exporters.prometheus.page import Page
from tachograph.logger.point import EVENT_NAME, FIELDS, MEASUREMENT, TAGS
from tachograph.recording import registry
from tachograph.recording.journal import LogEvent
from tachograph.recording.points import MetricPoints


class Recorded(NamedTuple):
    """A value under a name, with its declaration."""

    group: Any
    name: Any
    value: Any
    attributes: Any
    declared: dict[str, Any] | None


def _name(random: Random) -> Recorded:
    name = random.choice(otlp_bodies.NAMES) if random.random() < 0.3 else hostile.text(random)
    group = random.choice(otlp_bodies.SCOPES) if random.random() < 0.7 else hostile.text(random)
    attributes: Any = {}
    for _ in range(random.choice((0, 0, 1, 2))):
        key = random.choice(otlp_bodies.KEYS) if random.random() < 0.5 else hostile.text(random)
        attributes[key] = hostile.plain(random, 1)
    value: Any = random.choice((hostile.number(random), hostile.integer(random)))
    if random.random() < 0.05:
        name, group, value = random.choice(
            (
                (hostile.thing(random), group, value),
                (name, hostile.thing(random), value),
                (name, group, hostile.thing(random)),
            )
        )
    if random.random() < 0.03:
        attributes = hostile.thing(random)
    declared: dict[str, Any] | None = None
    if random.random() < 0.4:
        choices: dict[str, tuple[Any, ...]] = {
            "kind": ("gauge", "counter", "histogram"),
            "unit": otlp_bodies.UNITS,
            "description": ("About it.", *hostile.TEXTS),
            "boundaries": (*otlp_bodies.BOUNDS, [0, 1], range(1000), [2, 1], ["a"]),
        }
        declared = {
            key: random.choice(usual) if random.random() < 0.9 else hostile.thing(random)
            for key, usual in choices.items()
            if random.random() < 0.6
        }
    return Recorded(group, name, value, attributes, declared)


def _record(each: Recorded) -> None:
    if each.declared is None and not each.attributes:
        tachograph.put_metric(each.name, each.value, each.group)
    else:
        tachograph.declare(each.name, group=each.group, **(each.declared or {})).record(each.value, each.attributes)


def _judge_names(given: Sequence[Recorded]) -> str:
    registry.default.reset()
    try:
        for each in given:
            with suppress(TypeError, ValueError):
                _record(each)
    except Exception as error:  # noqa: BLE001 - the finding
        return f"{type(error).__name__} instead of a ValueError: {error!s:.300}"
    metrics: list[MetricPoints] = registry.default.collect()
    page = Page({"dl_rank": "0"}, {"service.name": "fuzz", "é": "\n"}, registry.default)
    pages = {form: page.render(metrics, None, negotiate(*FORMATS[form])) for form in FORMATS}
    return "; ".join(complaints(pages))


def _point(random: Random) -> LogEvent:
    time = hostile.integer(random) if random.random() < 0.1 else hostile.moment(random)
    time = max(-LATEST, min(LATEST, time))
    if random.random() < 0.3:
        said = {"metric": hostile.text(random), "group": hostile.text(random), "x": hostile.number(random)}
        said |= {"value": hostile.number(random), "branch": 0, hostile.text(random): hostile.text(random)}
        return LogEvent("tachograph.metric", time, time, said, 1, 0, 0, 0, "s")
    attributes: dict[str, Any] = {MEASUREMENT: hostile.text(random)}
    attributes[TAGS] = {hostile.text(random): hostile.text(random) for _ in range(random.randrange(4))}
    fields = {hostile.text(random): _field(random) for _ in range(random.randrange(1, 4))}
    attributes[FIELDS] = fields
    return LogEvent(EVENT_NAME, time, time, attributes, 1, 0, 0, 0, "s")


def _field(random: Random) -> Any:
    return random.choice((hostile.number(random), hostile.integer(random), hostile.text(random), True, 10**400, 2**64))


def _judge_line(given: Sequence[LogEvent]) -> str:
    (event,) = given
    try:
        made = line(event, {"dl.rank": 1, "dl.run.id": "a run", "dl.role": "é,="})
        if made is None or not made.text:
            return ""
    except Exception as error:  # noqa: BLE001 - the finding
        return "" if "is a comment" in str(error) else f"{type(error).__name__}: {error!s:.300}"
    try:
        read = parse(made.text.decode())
    except ValueError as error:
        return f"a line that is none, {error}: {made.text[:300]!r}"
    said: Any = event.attributes
    keys = set(read.fields)
    if event.name == EVENT_NAME:
        measurement = said[MEASUREMENT]
        keys = {as_written(key, pairs=True) for key, value in said[FIELDS].items() if key and _is_written(value)}
    else:
        measurement = f"{said['group']}/{said['metric']}" if said["group"] else said["metric"]
    wanted = as_written(measurement), keys, event.time_unix_nano
    same = wanted == (read.measurement, set(read.fields), read.time)
    return "" if same else f"a line that says something else: {made.text[:300]!r}"


def _is_written(value: Any) -> bool:
    return isinstance(value, str) or (abs(value) < 2**1024 and isfinite(value))


RECORDED_KINDS: dict[str, ProcessKind] = {
    "names": ProcessKind("names, groups, attributes and declarations", 30, _name, _judge_names, together=100),
    "lines": ProcessKind("InfluxDB's lines, read strictly", 20, _point, _judge_line),
}
