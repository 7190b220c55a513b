"""Points with a measurement, tags and fields: ``MetricsLogger``, a drop-in replacement for Templar's logger.

Each point goes to the logger's InfluxDB and to every exporter of :func:`tachograph.start` that accepts events; each
numeric field is also a gauge. Nothing needs to be set up.

Other packages of Tachograph also use ``influx_target``, the address of a database, and ``point``, the attributes of a
logged point.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from weakref import WeakSet

from tachograph.logger import _delivery
from tachograph.logger._fields import process_value
from tachograph.logger._identity import CONFIG, COUNTING, Dice, census_of, identity_tags, name_text
from tachograph.logger._readings import get_gpu_metrics, get_system_metrics
from tachograph.logger._shape import (
    Gauges,
    Origin,
    Shape,
    at_least_1,
    checked_mapping,
    checked_timestamp,
    with_readings,
)
from tachograph.logger.influx_target import (
    BATCH_SIZE,
    BATCH_SIZES,
    QUEUE_SIZE,
    InfluxTarget,
    MertricsLoggerWriteOptions,
)
from tachograph.logger.point import EVENT_NAME
from tachograph.recording import journal as journals
from tachograph.recording import registry as registries
from tachograph.recording.forking import at_fork
from tachograph.recording.ids import random_hex
from tachograph.recording.journal import Journal
from tachograph.recording.naming import check_name
from tachograph.recording.registry import Registry
from tachograph.recording.switch import switch
from tachograph.recording.trace_context import TRACE, current_span

__all__ = [
    "MertricsLoggerWriteOptions",
    "MetricsLogger",
    "MetricsLoggerWriteOptions",
    "get_gpu_metrics",
    "get_system_metrics",
    "process_value",
]

TIMEOUT = 5.0  # seconds that flush() and close() take at most
_SHAPES = 1024  # more are forgotten, and made again

_dice = Dice()


MetricsLoggerWriteOptions = MertricsLoggerWriteOptions


class MetricsLogger:
    """A logger of points that writes to InfluxDB and to every exporter of :func:`tachograph.start` that accepts events.

    Arguments win over the ``INFLUXDB_*`` variables, which are read when the logger is created. Without a host, points
    go to the exporters only. As a context manager, it closes on exit.

    Args:
        host: a URL, or a host name, which means https, or http for a loopback address (``INFLUXDB_HOST``).
        port: the port (``INFLUXDB_PORT``; default 8086).
        database: the bucket (``INFLUXDB_DATABASE``; default ``tplr``).
        token: the token (``INFLUXDB_TOKEN``); without one, no Authorization header is sent.
        org: the organization (``INFLUXDB_ORG``; default ``tplr``).
        prefix: a prefix of each measurement.
        uid: a tag of each point, like ``prefix``, ``version``, ``runtime_id``, ``role``, ``group`` and ``job_type``; an
            empty one is omitted.
        version: the version of the program.
        runtime_id: distinguishes starts of the program; random by default, and different in a forked process.
        role: the role of the process; a ``validator`` writes 10,000 points at once, any other role 1,000.
        config: a mapping, or an object with attributes; each public string, number or bool becomes a tag
            ``config_<name>`` with its present value.
        group: the group that the process belongs to.
        job_type: the part of the process in its group.
        max_queue_size: the maximum number of points in memory; further points drop the oldest ones, which are counted.
        max_workers: the number of concurrent writes to InfluxDB.
        counting_tags: how to write tags that count up: as a ``"tag"``, or as a ``"field"``, which creates no series in
            InfluxDB.
        integers: ``"integer"`` to write integers as integers to InfluxDB, or ``"float"`` to write all numbers as floats
            (``INFLUXDB_INTEGERS``; default ``integer``).
        counting_names: names of tags that count up; the first one with a number is the point's x. Other tags count up
            once they have more than 32 values. None of them becomes a metric label.
        write_options: options of writes; they win over the defaults of the role.
        journal: stores the points until they are exported; only the process's own journal is exported.
        registry: contains the gauges.

    Raises:
        ValueError: the host or port is invalid, a size is below 1, or ``counting_tags`` or ``integers`` has another
            value.
        TypeError: an argument has the wrong type.
    """

    def __init__(  # noqa: PLR0917 - the original's arguments
        self,
        host: str | None = None,
        port: int | str | None = None,
        database: str | None = None,
        token: str | None = None,
        org: str | None = None,
        prefix: str = "",
        uid: object = None,
        version: object = None,
        runtime_id: object = None,
        role: str = "",
        config: object = None,
        group: str = "",
        job_type: str = "",
        max_queue_size: int = QUEUE_SIZE,
        max_workers: int = 1,
        *,
        counting_tags: Literal["tag", "field"] = "tag",
        integers: Literal["integer", "float"] | None = None,
        counting_names: Iterable[str] = COUNTING,
        write_options: MertricsLoggerWriteOptions | None = None,
        journal: Journal = journals.default,
        registry: Registry = registries.default,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in {"self", "journal", "registry"}}
        if counting_tags not in {"tag", "field"}:
            raise ValueError(f'counting_tags must be "tag" or "field", not {counting_tags!r:.100}')
        if write_options is None:
            write_options = MertricsLoggerWriteOptions(BATCH_SIZES.get(role, BATCH_SIZE))
        target = InfluxTarget.read(
            os.environ,
            host=host,
            port=port,
            database=database,
            token=token,
            org=org,
            batch_size=at_least_1("batch_size", write_options.batch_size),
            concurrency=at_least_1("max_workers", max_workers),
            queue_size=at_least_1("max_queue_size", max_queue_size),
            integers=integers,
        )
        self._prefix = name_text(prefix)
        self._names_its_start = bool(name_text(runtime_id))
        named = {"role": name_text(role), "group": name_text(group), "job_type": name_text(job_type)}
        self._origin = Origin(
            registry,
            census_of(registry),
            counting=tuple(counting_names),
            as_fields=counting_tags == "field",
            labels={name: value for name, value in named.items() if value},
            tags=identity_tags(uid, self._prefix, version, runtime_id, named, config),
        )
        tags_of_config = {name: tag for name, tag in self._origin.tags.items() if name.startswith(CONFIG)}
        config = {name.removeprefix(CONFIG): tag for name, tag in tags_of_config.items()}
        self._arguments = {**arguments, "config": config, "counting_names": self._origin.counting}
        self._journal: Journal | _delivery.Unreachable = journal
        self._shapes: dict[tuple[object, ...], Shape] = {}
        self._last = 0
        self._lock = threading.RLock()  # reentrant: a signal handler may log
        self._off = not registry.enabled
        self._closed = False
        _loggers.add(self)
        if target is not None and not self._off:
            self._origin.to = _delivery.acquire(target)
            if self._origin.to is None:
                self._journal = _delivery.Unreachable(journal, registry)
                return
        journal.widen(max_queue_size)

    process_value = staticmethod(process_value)
    get_system_metrics = staticmethod(get_system_metrics)
    get_gpu_metrics = staticmethod(get_gpu_metrics)

    def log(  # noqa: C901, PLR0912, PLR0915, PLR0917 - the original's arguments, and each call takes as long as all of it
        self,
        measurement: str,
        tags: Mapping[str, object],
        fields: Mapping[str, object],
        timestamp: int | None = None,
        with_system_metrics: bool = False,
        with_gpu_metrics: bool = False,
        sample_rate: float = 1.0,
    ) -> None:
        """Log one point. This never blocks, and raises for no value of a tag or field.

        A point without fields is dropped and counted.

        Args:
            measurement: the name of the point; the logger's prefix is added before it.
            tags: distinguish points; each value becomes a string.
            fields: the values; see :func:`process_value`. A list of numbers becomes the fields ``<name>_mean``,
                ``_min``, ``_max`` and ``_median``; a field that you pass under such a name wins.
            timestamp: nanoseconds since 1970; without it, or with 0, the current time, after the logger's previous
                point.
            with_system_metrics: add ``sys_cpu_usage``, ``sys_mem_used`` and ``sys_mem_total``.
            with_gpu_metrics: add the ``gpu_*`` fields and tags of the process's device.
            sample_rate: the probability of logging the point, from 0 to 1.

        Raises:
            TypeError: tags or fields are not mappings, the measurement is not a string, or the timestamp is not an int.
            ValueError: the name of the point is empty or longer than 1,024 characters, or the timestamp or sample rate
                is out of range.
        """
        if tags.__class__ is not dict or fields.__class__ is not dict:
            tags, fields = checked_mapping("tags", tags), checked_mapping("fields", fields)
        if sample_rate != 1.0 and not _dice.falls(sample_rate):
            return
        if self._off or not switch.on:
            if self._closed and switch.on:
                self._origin.lose(
                    "closed",
                    "dropped a point logged after close() (further warnings are suppressed; see "
                    "tachograph_dropped_total on /metrics)",
                )
            return
        when = checked_timestamp(timestamp) if timestamp else 0
        more: Mapping[str, str] | None = None
        if with_system_metrics or with_gpu_metrics:
            fields, more = with_readings(fields, system=with_system_metrics, gpu=with_gpu_metrics)
        try:
            shape = self._shapes[measurement, tuple(tags), tuple(fields)]
            tags_of, fields_of = shape.tags_of, shape.fields_of  # as attributes, they would be looked for as methods
            tag_values, values = tags_of(tags), fields_of(fields)
        except (KeyError, TypeError):  # a new shape, names that are no strings, or another thread changes the dict
            tags, fields = self._origin.named(tags), self._origin.named(fields)
            known = self._shape(measurement, tags, fields)
            if known is None:
                return
            shape, tag_values, values = known, tuple(tags.values()), tuple(fields.values())
        for value in tag_values:
            if type(value) is not str and type(value) is not int:  # 1, 1.0 and True are one key, three texts
                tag_values = tuple(map(self._origin.tag, tag_values))
                break
        labels_of = shape.labels_of
        gauges = shape.gauges.get(labels_of(tag_values))
        if gauges is None:
            shape, gauges = self._gauges(shape, tag_values)
        plain, records, place = True, gauges.records, 0
        for value in values:
            if type(value) is float or type(value) is int:
                records[place](value)
            elif type(value) is not str:
                plain = False
            place += 1  # noqa: SIM113 - enumerate() and zip() take as long as the rest
        if not plain:
            values = shape.read(gauges, values)
        if not when:
            when = time.time_ns()
            if when > self._last:  # no lock: two threads do not read the clock in one nanosecond
                self._last = when
            else:
                when = self._after_last()
        # A point that waits holds no more than this, and its shape.
        later = (shape.made, tag_values, values, more) if more else (shape.made, tag_values, values)
        journal = self._journal
        events = journal.taking
        if TRACE in sys.modules:
            trace_id, span_id, flags = current_span()
            journal.append(EVENT_NAME, when, later, trace_id=trace_id, span_id=span_id, trace_flags=flags)
        elif events is None:  # nothing takes it, or something that counts it
            journal.append(EVENT_NAME, when, later)
        else:
            if len(events) >= journal.half:
                journal.make_room(1)
            events.append((EVENT_NAME, when, time.time_ns() if timestamp else when, later, 0, 0, 0))

    def _after_last(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    def _shape(self, measurement: str, tags: Mapping[str, object], fields: Mapping[str, object]) -> Shape | None:
        if not isinstance(measurement, str):
            raise TypeError(f"a measurement must be a string, not {type(measurement).__name__}: {measurement!r:.100}")
        name = check_name(self._prefix + measurement, "the name of a point")
        if not name:
            raise ValueError("the name of a point (prefix and measurement) must not be empty")
        if not fields:
            message = (
                "%r: dropped a point without fields (further warnings are suppressed; see "
                "tachograph_dropped_total on /metrics)"
            )
            self._origin.lose("empty", message, name)
            return None
        if len(self._shapes) >= _SHAPES:
            self._shapes.clear()
        shape = Shape(self._origin, name, tuple(tags), tuple(fields))
        return self._shapes.setdefault((measurement, shape.tag_names, shape.field_names), shape)

    def _gauges(self, shape: Shape, tag_values: tuple[Any, ...]) -> tuple[Shape, Gauges]:
        """Return the gauges of a point whose tags have new values, and its shape, without tags that have too many."""
        while True:
            gauges = shape.gauges_for(tag_values)
            if gauges is not None:
                shape.gauges[shape.labels_of(tag_values)] = gauges
                return shape, gauges
            self._shapes.clear()
            shape = Shape(self._origin, shape.measurement, shape.tag_names, shape.field_names)
            measurement = shape.measurement[len(self._prefix) :]
            self._shapes[measurement, shape.tag_names, shape.field_names] = shape

    def flush(self, timeout: float = TIMEOUT) -> bool:
        """Export all logged points within ``timeout`` seconds. Return False if some are still waiting."""
        return self._off or _delivery.flush(timeout)

    def close(self, timeout: float = TIMEOUT) -> None:
        """Export all logged points within ``timeout`` seconds and stop logging; later points are dropped and counted.

        Points that are not exported in time are exported in the background, or wait on disk for the next process.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._off:
            self._off = True
            deadline = time.monotonic() + timeout
            _delivery.flush(timeout)
            if self._origin.to is not None:
                _delivery.release(self._origin.to, max(deadline - time.monotonic(), 0.0))

    def __getstate__(self) -> dict[str, Any]:
        """Return its arguments, and attributes of the program's own; a copy, in any process, is a logger of its own."""
        attributes = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {"arguments": self._arguments, "attributes": attributes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a logger of those arguments."""
        MetricsLogger.__init__(self, **state["arguments"])
        vars(self).update(state["attributes"])

    def __enter__(self) -> MetricsLogger:  # noqa: PYI034 - typing.Self needs CPython 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset_in_child(self) -> None:
        """Free the lock after a fork; the child is a start of its own."""
        self._lock = threading.RLock()
        if not self._names_its_start:
            self._origin.tags = {**self._origin.tags, "runtime_id": random_hex(8)}


_loggers: WeakSet[MetricsLogger] = WeakSet()


def _after_fork_in_child() -> None:
    _dice.throw_again()
    for logger in list(_loggers):
        logger.reset_in_child()


at_fork("loggers", in_child=_after_fork_in_child)
