"""Curves of experiments: ``Metric`` and its chart, ``log()``, ``config()``, ``summary()``, progress bars and tasks.

Nothing needs to be set up: values recorded before :func:`tachograph.start` are exported once you call it.
:class:`Metric` adds a value to the curve of the current execution: a gauge has the last value, and the points of the
curve, each with its x, wait in the journal until they are exported.

Other packages of Tachograph also use ``execution`` and, to record values of other libraries, ``logged``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from tachograph.metric._config import Dictionary as Dictionary
from tachograph.metric._config import config, summary
from tachograph.metric._log import LoggedValues as LoggedValues
from tachograph.metric._log import log
from tachograph.metric._log import logged as logged
from tachograph.metric._logged_series import KeySet as KeySet
from tachograph.metric._logged_series import alike as alike
from tachograph.metric._progress import progress
from tachograph.metric._records import Metric as _Names
from tachograph.metric._tasks import task, workflow
from tachograph.metric.execution import Execution, current, process
from tachograph.recording.chart import Definition, MetricGroup, MetricScale, finite
from tachograph.recording.curve import NOWHERE, CurveRecorder, recorder
from tachograph.recording.instrument import Instrument
from tachograph.recording.losses import SeriesLosses
from tachograph.recording.naming import check_name
from tachograph.recording.registry import Registry
from tachograph.recording.table import table_html
from tachograph.recording.values import Number, Pending, is_readable

__all__ = [
    "Instrument",
    "Metric",
    "MetricGroup",
    "MetricScale",
    "config",
    "log",
    "progress",
    "summary",
    "task",
    "workflow",
]

THROTTLE = 10.0  # points a second


class _MetricCurves:
    """The curves of a Metric, see :class:`tachograph.recording.curve.Curves`; they live as long as its ``record``.

    Args:
        definition: of the metric.
        a_second: points that it may have, at most; None for all.
        late: the execution for values that are recorded in one that has ended; None to count them as dropped.
        registry: where values are counted that cannot be read.
    """

    __slots__ = ("__weakref__", "_a_second", "_late", "_losses", "at", "by_execution", "definition", "home")

    def __init__(
        self, definition: Definition, a_second: float | None, late: Execution | None, registry: Registry
    ) -> None:
        self.definition, self._late = definition, late
        self.at = f"at= of Metric {definition.key!r}"
        self.by_execution: dict[Execution, CurveRecorder] = {}
        self.home: CurveRecorder | None = None
        self._a_second = a_second
        self._losses = SeriesLosses(definition.key, partial(registry.count_dropped, "no_number", "registry"))

    def attach(self, execution: Execution, value: object, at: object) -> CurveRecorder:
        """Return the curve for a first value; one that is wrong leaves nothing behind."""
        if at is not None:
            finite(at, self.at)
        if not execution.records or not is_readable(value):  # a value that is not is counted once it is recorded
            return NOWHERE
        if not execution.has_room_for(self.definition):
            execution.registry.drop(value)
            return NOWHERE
        with execution.changing:
            if not execution.ended:
                curve = self.by_execution[execution] = execution.curve(self.definition, self._a_second)
                execution.metrics.add(self)
                if not execution.number:
                    self.home = curve
                return curve
        return self._too_late(execution)

    def _too_late(self, execution: Execution) -> CurveRecorder:
        """Return the curve for a value from a thread or an asyncio task that outlives the execution."""
        if self._late is not None:
            with suppress(ValueError):  # the process has another definition
                return self.home or self.attach(self._late, 0.0, None)
        execution.registry.count_dropped("closed", "journal")
        return NOWHERE

    def forget(self, execution: Execution) -> None:
        self.by_execution.pop(execution, None)
        if not execution.number:
            self.home = None

    def read(self, value: object) -> Number | Pending | None:
        """Return a value that is neither a float nor an int; None, counted and said once, where it is no number."""
        return self._losses.read(value)


class Metric:
    """A curve: values over x.

    Args:
        key: the metric's name, unique within an execution.
        group: the chart that the metrics of a group share, or its name.
        scale: the y-axis, or its name; metrics of a group whose scales have the same name share it.
        throttle: the maximum number of points per second. The first value is recorded at once, then one point at the
            end of each interval, with its last, smallest and largest value and their x. None records every value.
        execution: the execution to record in, with its clock, journal and registry. By default it is the current one:
            the running task, or else the process.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the key is empty or too long, ``throttle`` is not above zero, or an earlier definition of this key,
            its group or its scale in the same execution says something else.
    """

    __slots__ = {
        "__weakref__": "",
        "_curves": "",
        "_throttle": "",
        "record": """Record a value: ``record(value, *, at=None)``.

        Values are numbers of Python, NumPy or torch (one element), including NaN and infinities; a bool is 0 or 1.
        Anything else is dropped and counted, with one warning. Points have double precision. ``at`` is x; by default it
        is the number of seconds since the execution began. If x goes back, a new branch of the curve begins.

        ``record`` is a plain function in an attribute, so you can write ``record = metric.record`` before the loop.

        Raises:
            TypeError: ``at`` is not a number, or is a bool.
            ValueError: ``at`` is not finite or is beyond the range of floats (a throttled metric may record such an
                integer as the largest float instead), or, at the first value in an execution, another definition that
                has recorded there differs from this one.
        """,
    }
    record: Callable[..., None]

    def __init__(
        self,
        key: str,
        *,
        group: str | MetricGroup | None = None,
        scale: str | MetricScale | None = None,
        throttle: float | None = THROTTLE,
        execution: Execution | None = None,
    ) -> None:
        check_name(key, "metric name")
        wanted = Definition(key, _group(key, group), _scale(key, scale))
        self._throttle = _a_second(key, throttle)
        (current.get() if execution is None else execution).check(wanted)
        late = process if execution is None else None
        self._curves = _MetricCurves(
            wanted, self._throttle, late, (process if execution is None else execution).registry
        )
        record = _recorder(self._curves, execution)
        axes = [None if axis is None else asdict(axis) for axis in (wanted.group, wanted.scale)]
        _set_record(self, _Names.record.add(record, key, *axes, self._throttle))

    @property
    def key(self) -> str:
        """The metric's name."""
        return self._curves.definition.key

    @property
    def group(self) -> MetricGroup | None:
        """The chart, as passed."""
        return self._curves.definition.group

    @property
    def scale(self) -> MetricScale | None:
        """The y-axis, as passed."""
        return self._curves.definition.scale

    @property
    def throttle(self) -> float | None:
        """The maximum number of points per second; None for no limit."""
        return self._throttle

    def __getstate__(self) -> dict[str, Any]:
        """Return its definition; a copy records in the execution that runs then, in any process."""
        own = {"key": self.key, "group": self.group, "scale": self.scale, "throttle": self.throttle}
        return {"definition": own, "attributes": getattr(self, "__dict__", {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a metric of that definition."""
        Metric.__init__(self, **state["definition"])
        for name, value in state["attributes"].items():  # a subclass has some
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"<tachograph.Metric {self.key!r}>"

    def _repr_html_(self) -> str:
        """Return its definition and its last value, which a notebook shows; the run has its curve."""
        home = self._curves.home
        last = None if home is None else home.gauge.current
        about = {"metric": self.key, "group": self.group and self.group.name, "scale": self.scale and self.scale.name}
        return table_html({**about, "throttle": self.throttle, "last value": last})


# Not by assignment: a subclass may have a method of this name, which calls this one.
_set_record = cast("Any", Metric).__dict__["record"].__set__


def _recorder(curves: _MetricCurves, execution: Execution | None) -> Callable[..., None]:
    """Return :attr:`Metric.record`: in one execution, or in the one that runs."""
    if execution is None:
        return recorder(curves, current.get, process.journal.holders.passing, process.clock)
    return recorder(curves, lambda: execution, (), execution.clock)


def _record_again(
    key: str, group: dict[str, Any] | None, scale: dict[str, Any] | None, throttle: float | None
) -> Callable[..., None]:
    x_axis = None if group is None else MetricGroup(**group)
    y_axis = None if scale is None else MetricScale(**scale)
    return Metric(key, group=x_axis, scale=y_axis, throttle=throttle).record


_Names.record.make = _record_again


def _group(key: str, group: object) -> MetricGroup | None:
    if group is None or isinstance(group, MetricGroup):
        return group
    if isinstance(group, str):
        return MetricGroup(group)
    raise TypeError(
        f"the group of Metric {key!r} must be a MetricGroup or its name, not {type(group).__name__}: {group!r:.100}"
    )


def _scale(key: str, scale: object) -> MetricScale | None:
    if scale is None or isinstance(scale, MetricScale):
        return scale
    if isinstance(scale, str):
        return MetricScale(scale)
    raise TypeError(
        f"the scale of Metric {key!r} must be a MetricScale or its name, not {type(scale).__name__}: {scale!r:.100}"
    )


def _a_second(key: str, throttle: object) -> float | None:
    if throttle is None:
        return None
    rate = finite(throttle, f"throttle= of Metric {key!r}")
    if rate <= 0:
        raise ValueError(
            f"throttle= of Metric {key!r} must be a number of points per second above 0: {throttle!r:.100}; "
            "pass None to record every value"
        )
    return rate
