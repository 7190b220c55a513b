"""``log()``: dictionaries of values, as trackers take them.

A call appends a row: the time, the step, and the values. All rows are in one buffer, so that what they become follows
the order of the calls: see :mod:`tachograph.metric._logged_series`. The points leave packed, see
:mod:`tachograph.recording.packed_points`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tachograph.metric._logged_series import (
    LOG,
    FoldedRows,
    KeySet,
    LoggedName,
    LoggedSeries,
    OnItsWayError,
    Part,
    Row,
    join,
)
from tachograph.metric.execution import Execution, process
from tachograph.recording.accumulators import FOLD_WAIT
from tachograph.recording.chart import Definition, MetricGroup, finite
from tachograph.recording.forking import at_fork
from tachograph.recording.gil_yield import GilYield
from tachograph.recording.interrupts import free_within
from tachograph.recording.logged_tokens import TOKENS, logged_tokens
from tachograph.recording.naming import check_name
from tachograph.recording.own_metrics import BRIDGE_REPEATED, OWN_GROUP
from tachograph.recording.packed_points import PackedPoints
from tachograph.recording.registry import Registry
from tachograph.recording.registry import default as default_registry
from tachograph.recording.switch import switch
from tachograph.recording.values import Pending, shown

ROWS = 1024  # that are folded at once
MOST_KEY_SETS = 1024
MOST_WAITING = 2**20  # values that wait to leave, 8 MiB; beyond, the oldest are dropped
_FEWER = MOST_WAITING * 3 // 4  # of them that stay then
_DEPTH = 32  # of nested dictionaries: one that holds itself has no end


class LoggedValues:
    """The rows of ``log()`` and of the bridges, and the series that they become: a source of packed points.

    Args:
        registry: where losses are counted, and that is asked for points.
        execution: has the series' gauges.

    Attributes:
        registry: see above.
        rows: those that wait for a fold. It is always the same list.
        key_sets: of ``log()``, by group and keys.
        series: by group, metric and source.
        held: calls of bridges whose values come later: see ``BridgedValues``.
        take_held: makes rows of these calls; called with a pace.
    """

    def __init__(self, registry: Registry, execution: Execution = process) -> None:
        self.registry = registry
        self._execution = execution
        self.rows: list[Row] = []
        self.held: deque[tuple[Any, ...]] = deque()
        self.take_held: Callable[[Callable[[], object] | None], object] = lambda _pace: None
        self.reset()
        registry.points.add(self)

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.Lock()
        self._folding = 0
        self.rows.clear()
        self.held.clear()
        self.key_sets: dict[Any, KeySet] = {}
        self.series: dict[tuple[str, str, str], LoggedSeries] = {}
        self._names: dict[tuple[str, str], LoggedName] = {}
        self._folded: FoldedRows | None = None
        self._parts: list[Part] = []
        self._waiting = 0
        self._calls = 0
        self._tokens = 0

    def key_set(self, values: Mapping[Any, object], group: str | None) -> tuple[KeySet, Sequence[object]]:
        """Return the key set of a dictionary, new where there was none, and its values.

        Raises:
            TypeError: it is no mapping, or a key or the group is no string.
            ValueError: a name is empty or too long.
        """
        if not isinstance(values, Mapping):
            kind = type(values).__name__
            hint = f"; write log({{{shown(values)}: value}})" if isinstance(values, str) else ""
            raise TypeError(f"log() takes a mapping of names to values, not {kind}: {shown(values)}{hint}")
        flat = dict(_flat(values))
        place = (group, *flat)
        key_set = self.key_sets.get(place)
        if key_set is None:
            if group is not None:
                check_name(group, "the group of log()")
            names = [_named(key, group) for key in flat]
            made = KeySet([self.series_of(*name, LOG) for name in names], is_bridged=False)
            if len(self.key_sets) >= MOST_KEY_SETS:
                self.key_sets.pop(next(iter(self.key_sets)), None)
            key_set = self.key_sets.setdefault(place, made)
        return key_set, [*flat.values()]

    def series_of(self, group: str, metric: str, source: str) -> LoggedSeries | None:
        """Return a series, new where there was none; None where its name is one too many.

        Args:
            group: of the metric; empty for none.
            metric: its name.
            source: of the values. Of the first one of a name, the series has no attribute.
        """
        place = (group, metric, source)
        series = self.series.get(place)
        if series is not None:
            return series
        definition = Definition(metric, MetricGroup(group) if group else None, None)
        if not self._execution.has_room_for(definition):
            return None
        name = self._names.setdefault((group, metric), LoggedName(source))
        attributes = {}
        if source != name.owner:
            name.is_shared = True
            attributes = {"source": source}
        gauge = self._execution.gauge(definition, **attributes)
        return self.series.setdefault(place, LoggedSeries((group, metric), source, name, gauge, self.fold))

    def append(self, row: Row) -> None:
        """Append a row."""
        self.rows.append(row)
        if len(self.rows) >= ROWS:
            self.fold()

    def fold(self, wait: float = 0.0) -> bool:
        """Make points of the rows that were appended so far, up to one that waits for a device.

        Args:
            wait: seconds to wait for the fold of another thread.

        Returns:
            False where another fold is under way.
        """
        if self._lock.locked():
            if self._folding == threading.get_ident() or not free_within(self._lock, wait):
                return False
        elif not self.rows:
            return True
        with self._lock:
            self._folding = threading.get_ident()
            self._fold_rows()
            self._folding = 0
        return True

    def _fold_rows(self) -> None:
        self._apply()
        left = len(self.rows)  # a trace function that logs adds to them all the while
        while left > 0 and self.rows:
            rows = self.rows[: min(ROWS, left)]
            try:
                self._folded = FoldedRows(rows, self._calls)
            except OnItsWayError:
                rows = _arrived(rows)
                if not rows:
                    return
                self._folded = FoldedRows(rows, self._calls)
            left -= len(rows)
            self._apply()

    def _apply(self) -> None:
        """Put folded rows into effect; after an interrupt in the middle of that, once more."""
        folded = self._folded
        if folded is None:
            return
        folded.apply()
        dropped, folded.dropped = folded.dropped, 0
        if dropped:
            self.registry.count_dropped("cardinality", "registry", dropped)
        repeated, folded.repeated = folded.repeated, {}
        for source, count in repeated.items():
            self.registry.group(OWN_GROUP).own(BRIDGE_REPEATED).record(count, {"library": source})
        parts = folded.parts if self.registry.points.wanted is not False else []
        waiting = self._waiting + sum(part.cost for part in parts)
        tokens = self._tokens + folded.tokens
        count = folded.count
        # No call in these lines, see interrupts.ATOMIC: an interrupt neither loses nor doubles a row.
        self._parts += parts
        self._waiting = waiting
        self._calls = folded.calls
        self._tokens = tokens
        self._folded = None
        del self.rows[:count]
        if waiting > MOST_WAITING:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest points, after joining them, which takes less memory."""
        # No call in this line: another thread may take them.
        parts, self._parts, self._waiting = self._parts, [], 0
        parts = join(parts)
        waiting = sum(part.cost for part in parts)
        dropped = 0
        while parts and waiting > (_FEWER if dropped else MOST_WAITING):
            oldest = parts.pop(0)
            waiting -= oldest.cost
            dropped += len(oldest.values)
        self._put_back(parts)
        if dropped:
            self.registry.count_dropped("queue_full", "journal", dropped)

    def tokens(self) -> int | None:
        """Return the sum of all ``tokens`` that were logged without a group; None before the first."""
        if ("", TOKENS, LOG) not in self.series:
            return None
        self.fold()
        return self._tokens

    def waiting(self) -> bool:
        """Tell whether there may be points to take."""
        return bool(self.rows or self._parts or self.held)

    def take(self, *, everything: bool) -> Iterator[PackedPoints]:  # noqa: ARG002 - all are due at once
        """Yield the points of the rows so far."""
        if self.held:
            self.take_held(GilYield())
        self.fold(FOLD_WAIT)
        # No call in this line, as another thread may fold.
        parts, self._parts, self._waiting = self._parts, [], 0
        taken = 0
        try:
            parts = join(parts)
            for part in parts:
                points = part.points()
                taken += 1
                yield points
        except BaseException:  # an interrupt, or no memory: the rest leaves the next time
            self._put_back(parts[taken:])
            raise

    def _put_back(self, parts: list[Part]) -> None:
        try:
            self._parts = parts + self._parts
            self._waiting += sum(part.cost for part in parts)
        except MemoryError:
            for part in parts:
                for series in part.series:
                    series.gauge.losses.overflow += len(part.x)


def _arrived(rows: Sequence[Row]) -> list[Row]:
    """Return the rows before the first that waits for a device, with the numbers that have arrived."""
    arrived: list[Row] = []
    for row in rows:
        numbers = list(row)
        for series, column in row[0].columns.items():
            pending = row[column]
            if isinstance(pending, Pending):
                if not pending.ready():
                    return arrived
                numbers[column] = series.gauge.losses.arrived(pending)
        arrived.append(tuple(numbers))
    return arrived


def _named(key: object, group: str | None) -> tuple[str, str]:
    """Return group and metric of a key: ``a/b`` is the metric ``b`` of the group ``a``, where no group is given."""
    name = check_name(key, "a key of log()")
    before, _, behind = name.partition("/")
    if group is None and before and behind:
        return before, behind
    if not name:
        raise ValueError("a key of log() must not be empty")
    return group or "", name


def _flat(values: Mapping[Any, object], depth: int = 0) -> Iterator[tuple[Any, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            check_name(key, "a key of log()")
            yield from ((f"{key}/{inner}", found) for inner, found in _flat(value, depth + 1))
        else:
            yield key, value


logged = LoggedValues(default_registry)


def log(values: Mapping[str, object], step: object = None, *, group: str | None = None) -> None:
    """Log a dictionary of values. Each key is a curve, and a gauge with its last value.

    Without ``group``, ``train/loss`` is the metric ``loss`` of the group ``train``. Nested dictionaries are flattened
    with ``/``. Values are numbers of Python, NumPy or torch (one element), including NaN and infinities; anything else
    is dropped and counted, with one warning. Every value is stored. Branches and the last value of a curve follow the
    order of the calls, whatever other keys these calls have.

    Args:
        values: names and values.
        step: x of the points; by default the number of earlier calls of ``log()``. A step that goes back begins a new
            branch of the curves.
        group: the group of all keys.

    Raises:
        TypeError: the values are not a mapping, a key or the group is not a string, or the step is not a number.
        ValueError: a key is empty or longer than 1,024 characters, or the step is not finite.
    """
    into = logged
    if not switch.on or not into.registry.enabled:
        return
    if step is not None and step.__class__ is not int:
        step = finite(step, "the step of log()")
    if into.held:
        into.take_held(None)
    try:
        key_set = into.key_sets[(group, *values)]
        numbers: Any = values.values()
    except (KeyError, TypeError, AttributeError):
        key_set, numbers = into.key_set(values, group)
    for value in numbers:
        if value.__class__ is not float and value.__class__ is not int:
            if any(isinstance(other, Mapping) for other in numbers):
                key_set, numbers = into.key_set(values, group)
            numbers = key_set.read(numbers)
            break
    rows = into.rows
    rows.append((key_set, time.time_ns(), step, *numbers))
    if len(rows) >= ROWS:
        into.fold()


at_fork("log", in_child=logged.reset)
logged_tokens.summed_by(logged.tokens)
