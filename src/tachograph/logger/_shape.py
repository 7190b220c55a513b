"""The shape of a point: its measurement, and the names of its tags and fields, which many points share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from tachograph.logger._fields import Arriving, Field, NoValue, Plain, Statistics, field
from tachograph.logger._identity import COUNTING
from tachograph.logger._readings import TAGS as GPU_TAGS
from tachograph.logger._readings import get_gpu_metrics, get_system_metrics
from tachograph.logger.point import FIELDS, MEASUREMENT, TAGS, LoggerPoint
from tachograph.recording.instrument import Record, nothing
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.own_metrics import Reason
from tachograph.recording.points import encodable
from tachograph.recording.registry import Registry
from tachograph.recording.values import Number, fits_int64

if TYPE_CHECKING:
    from tachograph.logger._identity import TagCensus
    from tachograph.logger.influx_target import InfluxTarget


SCOPE = "tachograph.logger"
_ARRIVAL = 1.0  # seconds that a value may take from its device once its point leaves
_SERIES_LIMIT = 4096
_PLAIN = frozenset((float, int, str))


class Origin:
    """The origin of points: one logger, and all that its points have in common.

    Attributes:
        registry: has the gauges, and counts losses.
        census: tells which tags may be labels.
        counting: the names of tags that count up, the x first.
        as_fields: tags that count up leave as fields.
        tags: the tags that come after the user's.
        labels: the labels that come after the user's.
        to: the database that takes the points.
    """

    __slots__ = ("_log_once", "as_fields", "census", "counting", "labels", "registry", "tags", "to")

    def __init__(
        self,
        registry: Registry,
        census: TagCensus,
        *,
        counting: Sequence[str],
        as_fields: bool,
        labels: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        self.registry = registry
        self.census = census
        self.counting = counting
        self.as_fields = as_fields
        self.labels = labels
        self.tags = tags
        self.to: InfluxTarget | None = None
        self._log_once = LogOnce()

    def say(self, message: str, *args: object) -> None:
        """Log a message once a logger."""
        self._log_once(message, message, *args)

    def lose(self, reason: Reason, message: str, *args: object) -> None:
        """Count a loss, and log it once."""
        self.registry.count_dropped(reason, "logger")
        self.say(message, *args)

    def named(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """Return tags or fields with strings as their names."""
        if all(key.__class__ is str for key in given):
            return dict(given)
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = key if key.__class__ is str else self._shown(key)
            if name in found:
                self.say("two tags or two fields have the name %r: keeping the first one", name)
            elif name is not None:
                found[name] = value
        return found

    def tag(self, value: Any) -> str | int:
        """Return the value of a tag as it is now: a later change of the object is not in it."""
        if value.__class__ is str or value.__class__ is int:
            return value
        return self._shown(value) or ""

    def _shown(self, value: Any) -> str | None:
        try:
            if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
                self.say("a tag is a tensor on a device and reading it would block: pass its .item()")
                return f"<{type(value).__name__}>"
            if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
                value = value.item()
            return str.__str__(str(value))
        except Exception as error:  # noqa: BLE001 - the border to user code: whatever an object raises that is read
            pass_on(error)
            self.registry.count_error("logger")
            self.say(
                "dropped a tag or a name that has no text: %r (further warnings are suppressed; see "
                "tachograph_errors_total on /metrics)",
                error,
            )
            return None

    def gauge(self, name: str, labels: Mapping[str, str]) -> Record:
        """Return the function that sets the gauge of a field; it does nothing where the name cannot be a metric's."""
        try:
            declared = self.registry.group(SCOPE).declare(
                encodable(name), kind="gauge", unit=None, description="", boundaries=None
            )
            return declared.bind(**labels)
        except (TypeError, ValueError) as error:
            self.registry.count_error("logger")
            self.say(
                "recording a field only in events, without a gauge: %s "
                "(further warnings are suppressed; see tachograph_errors_total on /metrics)",
                error,
            )
            return nothing


class Gauges:
    """The gauges of a shape's points with the same labels."""

    __slots__ = ("_found", "_labels", "_origin", "_prefix", "records")

    def __init__(self, shape: Shape, labels: Mapping[str, str]) -> None:
        self._origin = shape.origin
        self._labels = labels
        self._prefix = shape.measurement
        self._found: dict[str, Record] = {}
        self.records = tuple(self.of(name) for name in shape.field_names)

    def of(self, name: str) -> Record:
        """Return the function that sets the gauge of a field."""
        found = self._found.get(name)
        if found is None:
            found = self._origin.gauge(f"{self._prefix}.{name}", self._labels)
            self._found[name] = found
        return found


class Shape:
    """The shape of points: one measurement and one set of names, with all that follows from them.

    Attributes:
        made: makes a point's attributes when it leaves, from the values of its tags and fields, and the tags of the
            device where those were asked for.
        tags_of: picks the values of the tags; raises KeyError where one is not there.
        fields_of: picks those of the fields.
        places: the indexes of the tags that may be labels, among all tags.
        labels_of: picks the values of these tags.
        gauges: by the values that ``labels_of`` picks.
    """

    __slots__ = (
        *("field_names", "fields_of", "gauges", "labels_of", "made", "measurement", "origin", "places", "tag_names"),
        "tags_of",
    )

    def __init__(self, origin: Origin, measurement: str, tag_names: Sequence[str], field_names: Sequence[str]) -> None:
        self.origin = origin
        self.measurement = measurement
        self.tag_names = tuple(tag_names)
        self.field_names = tuple(field_names)
        self.tags_of, self.fields_of = _picker(self.tag_names), _picker(self.field_names)
        self.made: Callable[..., LoggerPoint] = self._made  # bound once: every point that waits holds it
        self.gauges: dict[Any, Gauges] = {}
        for name in tag_names:
            if name in origin.counting:
                origin.census.say_counting(name, "; it is written as a field" if origin.as_fields else "")
        self.places = tuple(
            place
            for place, name in enumerate(tag_names)
            if name and name not in origin.counting and not origin.census.grown(measurement, name)
        )
        self.labels_of: Callable[[Sequence[Any]], Any] = itemgetter(*self.places) if self.places else _no_labels

    def gauges_for(self, tag_values: Sequence[Any]) -> Gauges | None:
        """Return the gauges for the values of the tags; None where one of them may not be a label any more."""
        values = [encodable(_text(tag_values[place])) for place in self.places]
        names = [self.tag_names[place] for place in self.places]
        admitted = [
            self.origin.census.admits(self.measurement, name, value) for name, value in zip(names, values, strict=True)
        ]
        if not all(admitted):
            return None
        labels = {**self.origin.labels, **{encodable(name): value for name, value in zip(names, values, strict=True)}}
        if len(self.gauges) >= _SERIES_LIMIT:
            self.gauges.clear()
        return Gauges(self, labels)

    def read(self, gauges: Gauges, values: Sequence[Any]) -> tuple[Field | None, ...]:
        """Read a point's fields and set their gauges; None where the program's own object failed."""
        return tuple(
            self._read(gauges, name, record, value)
            for name, record, value in zip(self.field_names, gauges.records, values, strict=False)
        )

    def _read(self, gauges: Gauges, name: str, record: Record, value: Any) -> Field | None:
        if value.__class__ in _PLAIN:  # its gauge is set
            return cast("Plain", value)
        try:
            found = field(value)
        except Exception as error:  # noqa: BLE001 - the border to user code: whatever an object raises that is read
            pass_on(error)
            message = "dropped field %r: %s (further warnings are suppressed; see tachograph_dropped_total on /metrics)"
            self.origin.lose("no_number", message, name, error)
            return None
        if isinstance(found, Statistics):
            for flat, number in _flattened(name, found).items():
                if flat not in self.field_names:
                    gauges.of(flat)(number)
        elif isinstance(found, int | float):
            record(found)
        elif isinstance(found, Arriving) and value.__class__ is not list and getattr(value, "ndim", None) == 0:
            record(value)
        return found

    def _made(
        self, tag_values: Sequence[Any], field_values: Sequence[Field | None], device: Mapping[str, str] | None = None
    ) -> LoggerPoint:
        """Return the attributes of a point that leaves; in a thread of ours."""
        origin = self.origin
        tags = {
            encodable(name): encodable(_text(value)) for name, value in zip(self.tag_names, tag_values, strict=True)
        }
        fields = self._fields(field_values)
        x_name, x = self._x(tags)
        if origin.as_fields:
            self._move_counting(tags, fields)
        for own in (device or {}), origin.tags:
            for name, value in own.items():
                tags.setdefault(encodable(name), encodable(value))
        attributes = {MEASUREMENT: encodable(self.measurement), TAGS: tags, FIELDS: fields}
        point = LoggerPoint(attributes, origin.to, fields_without_value=self._fields_without_value(field_values))
        if x is not None:
            point["x"] = x
            if origin.counting != COUNTING:
                point["x_name"] = encodable(x_name)
        return point

    def _fields(self, values: Sequence[Field | None]) -> dict[str, Number | str]:
        fields: dict[str, Number | str] = {}
        deadline = time.monotonic() + _ARRIVAL
        for name, value in zip(self.field_names, values, strict=True):
            found = self._arrived(name, value, deadline) if isinstance(value, Arriving) else value
            if isinstance(found, Statistics):
                self._add_flattened(fields, name, found)
            elif isinstance(found, NoValue):
                fields[encodable(name)] = float(found)
            elif isinstance(found, str):
                fields[encodable(name)] = encodable(found)
            elif found is not None:
                fields[encodable(name)] = found if found.__class__ is float or fits_int64(found) else _text(found)
        return fields

    def _fields_without_value(self, values: Sequence[Field | None]) -> list[str]:
        return [
            encodable(name) for name, value in zip(self.field_names, values, strict=True) if value.__class__ is NoValue
        ]

    def _arrived(self, name: str, value: Arriving, deadline: float) -> Plain | None:
        try:
            return value.wait(deadline)
        except Exception as error:  # noqa: BLE001 - a device that fails costs the point this field, and nothing else
            pass_on(error)
            message = "dropped field %r: %s (further warnings are suppressed; see tachograph_dropped_total on /metrics)"
            self.origin.lose("no_number", message, name, error)
            return None

    def _add_flattened(self, fields: dict[str, Number | str], name: str, found: Statistics) -> None:
        for flat, number in _flattened(name, found).items():
            if flat in self.field_names:
                self.origin.say(
                    "field %r already exists: dropped the statistic of the same name of list %r", flat, name
                )
            else:
                fields[encodable(flat)] = number

    def _x(self, tags: Mapping[str, str]) -> tuple[str, Number | None]:
        for name in self.origin.counting:
            if name in tags:
                found = _number(tags[name])
                if found is not None:
                    return name, found
        return "", None

    def _move_counting(self, tags: dict[str, str], fields: dict[str, Number | str]) -> None:
        census = self.origin.census
        for name in list(tags):
            counts = name in self.origin.counting or census.grown(self.measurement, name)
            if counts and name not in fields:
                text = tags.pop(name)
                number = _number(text)
                fields[name] = text if number is None else number


def _picker(names: Sequence[str]) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: tuple([given[name] for name in names])  # an itemgetter of one name returns no tuple


def _no_labels(_tag_values: Sequence[Any]) -> None:
    return None


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    try:
        return str(value)
    except ValueError:  # CPython writes no more than 4,300 decimal digits
        return hex(cast("int", value))


def _flattened(name: str, found: Statistics) -> dict[str, float]:
    return {f"{name}_{which}": number for which, number in found._asdict().items()}


def _number(text: str) -> Number | None:
    """Return the finite number that a tag's value is; None where it is none."""
    for kind in (int, float):
        try:
            found: Number = kind(text)
        except ValueError:
            continue
        if isfinite(found) and abs(found) < 2**63:
            return found
    return None


_LATEST = 2**63  # nanoseconds: the end of InfluxDB's times


def checked_mapping(name: str, given: object) -> dict[Any, Any]:
    """Return tags or fields as a dict.

    Raises:
        TypeError: they are no mapping.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of names to values, not {type(given).__name__}: {given!r:.100}")
    return dict(given)


def checked_timestamp(given: Any) -> int:
    """Return a timestamp, in nanoseconds since 1970.

    Raises:
        TypeError: it is no int.
        ValueError: it is before 1970, or after the last time of InfluxDB.
    """
    try:
        when = given.__index__()
    except AttributeError:
        raise TypeError(f"timestamp must be an int, nanoseconds since 1970, not {type(given).__name__}") from None
    if not 0 < when < _LATEST:
        raise ValueError(f"timestamp must be nanoseconds since 1970, below 2**63: {given!r:.100}")
    return int(when)


def at_least_1(name: str, given: object) -> int:
    """Return a size.

    Raises:
        TypeError: it is no int.
        ValueError: it is below 1.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be an int, not {type(given).__name__}: {given!r:.100}")
    if given < 1:
        raise ValueError(f"{name} must be at least 1: {given}")
    return given


def with_readings(fields: Mapping[str, object], *, system: bool, gpu: bool) -> tuple[dict[str, object], dict[str, str]]:
    """Return a point's fields with the machine's, of which the program's own win, and the tags of the device."""
    found: dict[str, object] = {f"sys_{name}": value for name, value in get_system_metrics().items()} if system else {}
    tags: dict[str, str] = {}
    if gpu:
        device = get_gpu_metrics()
        tags = {name: str(device.pop(name)) for name in GPU_TAGS if name in device}
        found.update(device)
    return {**fields, **{name: value for name, value in found.items() if name not in fields}}, tags
