"""Values that other libraries log: their names, their x, each once, and the count of all that makes no curve."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, nan
from statistics import fmean
from typing import Any, TypeVar

from tachograph.instrumentation._given_providers import EVERYWHERE, Recording
from tachograph.instrumentation.bridges._nesting import calls, leaf_of
from tachograph.metric import Dictionary, KeySet, LoggedValues, config, logged, summary
from tachograph.metric.execution import SCOPE, Execution
from tachograph.recording.chart import finite
from tachograph.recording.forking import at_fork
from tachograph.recording.ids import NumberSequence
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import CONFIG, SUMMARY
from tachograph.recording.log import LogOnce, log
from tachograph.recording.logged_points import POINT
from tachograph.recording.naming import group_and_name, legal
from tachograph.recording.own_metrics import BRIDGE_NOT_TAKEN, BRIDGE_REPEATED, OWN_GROUP
from tachograph.recording.packed_points import first_branch
from tachograph.recording.points import AttributeValue
from tachograph.recording.switch import switch
from tachograph.recording.values import Number, Pending, is_readable, read

Found = TypeVar("Found")

MOST_SERIES = 16_384
MOST_ORIGINS = 1024  # that are known by their key
MOST_OF_A_HISTOGRAM = 2048  # values of one call: the time of the thread that trains is bounded
MOST_HELD = 1024  # calls that wait until a collection makes values of them
_PIECE = 64  # of them that a caller takes itself, where there are more
_LABEL = 100  # characters
_WHY = {"logging": "were logged too fast"}


class _Series:
    """One tag of an origin.

    Attributes:
        key_set: of its rows.
        calls: counts the values that have no x.
    """

    __slots__ = ("calls", "key_set")

    def __init__(self, key_set: KeySet) -> None:
        self.key_set = key_set
        self.calls = NumberSequence(0).next


class _Histogram:
    """A histogram, with the x of its last values.

    Args:
        owner: the library that recorded it first, whose calls are points.
    """

    __slots__ = ("_branch", "_calls", "_x", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._x = -inf
        self._branch = first_branch()
        self._calls = 0

    def point(self, group: str, name: str, values: Sequence[float], x: Number | None) -> dict[str, AttributeValue]:
        """Return the attributes of the point that stands for the values of one call."""
        at = float(self._calls if x is None else x)
        self._calls += 1
        self._branch += at < self._x
        self._x = at
        point: dict[str, AttributeValue] = {"metric": name, "x": at, "branch": self._branch, "count": len(values)}
        if group:
            point["group"] = group
        finite = [value for value in values if isfinite(value)]
        if len(finite) < len(values):
            point["nonfinite"] = len(values) - len(finite)
        if finite:
            point |= {"value": fmean(finite), "min": min(finite), "min_x": at, "max": max(finite), "max_x": at}
        else:
            point["value"] = nan
        return point


class Origin:
    """A writer or run of a library: values of one name from two of them are two curves.

    Attributes:
        library: its name, as in the setting TACHOGRAPH_BRIDGES.
        group: stands before the groups of its values; empty for the first one of a library.
        series: by tag.
    """

    __slots__ = ("__weakref__", "group", "library", "series")

    def __init__(self, library: str, group: str) -> None:
        self.library, self.group = library, group
        self.series: dict[str, _Series] = {}


class ByObject(dict[int, Found]):
    """Notes about the writers or runs of a library, by ``id``: a look-up costs a tenth of a weak dictionary's."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref[Any]] = {}

    def keep(self, whose: Any, found: Found) -> Found:
        """Keep ``found`` as long as its object lives, and return it."""
        key = id(whose)

        def forget(_: object) -> None:
            self.pop(key, None)
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(whose, forget)
        self[key] = found
        return found


class BridgedValues:
    """The values of all bridges that record into the same providers.

    A bridge may hold a call instead of taking its values: one entry in ``held``, which the next collection, or the next
    value of another library or of ``log()``, makes values of.

    Args:
        recording: the registry and the journal.
        most_series: of all libraries.

    Attributes:
        recording: see above.
        held: calls in their order: the library, a function that calls :meth:`take_scalar`, and its arguments; in one
            tuple, as each further one costs the caller its making.
    """

    def __init__(self, recording: Recording, *, most_series: int = MOST_SERIES) -> None:
        self.recording, self._registry = recording, recording.registry
        self._registry.early.append(self.settle)
        # With those of log(), so that a value which comes by a bridge, too, counts once.
        self._logged = logged
        if recording != EVERYWHERE:
            self._logged = LoggedValues(
                recording.registry, Execution(registry=recording.registry, journal=recording.journal)
            )
        self._logged.take_held = self.settle
        self.held = self._logged.held
        self._most_series = most_series
        self._config: Callable[[object], None] = config
        self._summary: Callable[[object], None] = summary
        if recording.journal is not EVERYWHERE.journal:
            registry, journal = recording
            self._config = Dictionary(CONFIG, registry=registry, journal=journal).merge
            self._summary = Dictionary(SUMMARY, registry=registry, journal=journal).merge
        self._log_once = LogOnce()
        self._not_taken_counts: dict[tuple[str, str], Callable[[object], None]] = {}
        self._not_taken: dict[tuple[str, str], int] = {}
        self._origins: dict[tuple[str, str], Origin] = {}
        self._living: weakref.WeakSet[Origin] = weakref.WeakSet()  # those that only their notes know as well
        self._places: dict[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything but the origins' names, as a forked child does."""
        self._settling = threading.Lock()
        self._histograms: dict[tuple[str, str], _Histogram] = {}
        self._logged.reset()
        for origin in list(self._living):
            origin.series = {}
        self._not_taken = {}

    def origin(self, library: str, key: str, label: str) -> Origin:
        """Return the origin of this key, new where there was none: the second one of a library is a group, and said.

        Of more than 1,024 the oldest are forgotten: one that is asked for again is a new one.

        Args:
            library: its name.
            key: of the writer or run.
            label: its name for people.
        """
        found = self._origins.get((library, key))
        if found is not None:
            return found
        number = self._places[library] = self._places.get(library, 0) + 1
        group = ""
        if number > 1:
            group = legal(label)[:_LABEL]
            if number > MOST_ORIGINS or any(
                origin.group == group for origin in self._origins.values() if origin.library == library
            ):
                group = f"{group} ({number})"
            message = "%s has %d writers or runs in this process: recording the values of the latest one in group %r"
            self._log_once(("origin", library), message, library, number, group)
        if len(self._origins) >= MOST_ORIGINS:  # runs of a sweep; the first of a library may be asked for without a key
            oldest = next(((of, known) for of, known in self._origins if known), None)
            self._origins.pop(oldest or (library, key), None)
        made = self._origins.setdefault((library, key), Origin(library, group))
        self._living.add(made)
        return made

    def scalar(
        self,
        origin: Origin,
        tag: str,
        value: object,
        x: object = None,
        *,
        counted: bool = False,
        time_unix_nano: int | None = None,
        rounding: float = 0.0,
    ) -> None:
        """Record a value of a curve, unless it has come already.

        Args:
            origin: of the value.
            tag: ``train/loss`` is the metric ``loss`` of the group ``train``.
            value: a number of Python, NumPy or torch; anything else is counted, and said once.
            x: of the value; None or no finite number for the count of the series' values.
            counted: the library has counted x itself: by another library, the value may have another one.
            time_unix_nano: of the value; None for now.
            rounding: half of the last digit's unit, of a value that was read from a text.
        """
        if self.held:
            self.settle()
        self.take_scalar(origin, tag, value, x, counted=counted, time_unix_nano=time_unix_nano, rounding=rounding)

    def take_scalar(
        self,
        origin: Origin,
        tag: str,
        value: object,
        x: object,
        *,
        counted: bool,
        time_unix_nano: int | None,
        rounding: float = 0.0,
    ) -> None:
        """Record a value as :meth:`scalar` does, for a held call, whose turn it is: its arguments are the same."""
        if not switch.on:
            return
        series = origin.series.get(tag) or self._new_series(origin, tag, value)
        if series is None:
            return
        number: Any = value
        if number.__class__ is not float and number.__class__ is not int and number.__class__ is not Pending:
            (number,) = series.key_set.read((value,))
            if number is None:
                return
        if x.__class__ is not int:
            x = _finite(x)
        at = series.calls() if x is None else x
        known_x = None if counted else x
        self._logged.append((series.key_set, time_unix_nano or time.time_ns(), at, number, known_x, rounding))

    def bound_held(self) -> None:
        """Make values of the oldest calls that are held, where they are very many: the caller shall not wait long."""
        if len(self.held) > MOST_HELD:
            self._settle(_PIECE, _at_once)

    def settle(self, pace: Callable[[], object] | None = None) -> None:
        """Make values of the calls that are held.

        Args:
            pace: called after each; a background thread sleeps in it, to let others run.
        """
        self._settle(len(self.held), pace or _at_once)

    def _settle(self, most: int, pace: Callable[[], object]) -> None:
        # Another thread is at it, or this one was interrupted: whoever has the lock takes these calls as well.
        if not self.held or not self._settling.acquire(blocking=False):
            return
        try:
            for _ in range(most):
                library, take, *args = self.held.popleft()
                try:
                    take(*args)
                except Exception as error:  # noqa: BLE001 - the border to the objects of the program
                    pass_on(error)
                    self.failed(library, error)
                pace()
        except IndexError:  # a fork has emptied it
            pass
        finally:
            self._settling.release()

    def passed_over(self, library: str, tag: str, value: object, record: Callable[[], object]) -> bool:
        """Tell whether a value is one that the call of another bridge around this one records itself.

        Args:
            library: that got it.
            tag: of the value.
            value: see above.
            record: records it; called where the call around this one fails.
        """
        outermost = calls.outermost
        if outermost is None or not outermost.passes_over(leaf_of(tag), value, record):
            return False
        self._count_repeated(library)
        return True

    def _new_series(self, origin: Origin, tag: str, value: object) -> _Series | None:
        """Return the series of a tag; None where the value is no number, or there is no room: both are counted."""
        if value.__class__ is not Pending and not is_readable(value):
            self._refuse(origin.library, tag, value)
            return None
        if not self._has_room(len(self._logged.series)):
            return None
        logged_series = self._logged.series_of(*self._named(origin, tag), origin.library)
        if logged_series is None:
            self._registry.drop(value)
            return None
        return origin.series.setdefault(tag, _Series(KeySet([logged_series], is_bridged=True)))

    def _has_room(self, series: int) -> bool:
        """Tell whether a further series is recorded; one that is not is counted, and said once."""
        if series < self._most_series:
            return True
        self._registry.count_dropped("cardinality", "registry")
        message = (
            "dropped a series of another library because there are already %d "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
        )
        self._log_once("cardinality", message, self._most_series)
        return False

    def number(self, library: str, tag: str, value: object) -> Number | Pending | None:
        """Return a value as it is now, for a held call; anything but a number is counted and said once, and None."""
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - the border to user code: any object's __float__ or item() may fail
            pass_on(error)
            self._refuse(library, tag, value)
            return None

    def _refuse(self, library: str, tag: str, value: object) -> None:
        self._registry.count_dropped("no_number", "registry")
        message = (
            "%s: dropped a value of %r of type %s, expected a number "
            "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
        )
        self._log_once(("no_number", library), message, library, tag, type(value).__name__)

    @staticmethod
    def _named(origin: Origin, tag: str) -> tuple[str, str]:
        """Return group and metric of a tag."""
        group, name = group_and_name(tag)
        return "/".join(part for part in (origin.group, group) if part), name

    def _count_repeated(self, library: str) -> None:
        self._registry.group(OWN_GROUP).own(BRIDGE_REPEATED).record(1, {"library": library})

    def distribution(self, origin: Origin, tag: str, values: Any, x: object = None) -> None:
        """Record values into a histogram: of more than 2,048, as many that lie evenly among them.

        A point of a curve of the same name says at which x they came: their mean, their extremes and their number.

        Args:
            origin: of the values.
            tag: as for :meth:`scalar`.
            values: a list, an array or a tensor of any shape.
            x: of the values; None or no finite number for the count of the calls.
        """
        if not switch.on:
            return
        group, name = place = self._named(origin, tag)
        if place not in self._histograms and not self._has_room(len(self._histograms)):
            return
        try:
            instrument = self._registry.group_for(group or SCOPE, name).declare(
                name, kind="histogram", unit=None, description="", boundaries=None
            )
        except ValueError as error:  # the name of a gauge, too
            self._registry.count_dropped("name_conflict", "registry")
            self._log_once(("histogram", group, name), "%s: dropped a histogram: %s", origin.library, error)
            return
        histogram = self._histograms.setdefault(place, _Histogram(origin.library))
        record = instrument.series({}).record
        numbers = _some(values)
        for value in numbers:
            record(value)
        if numbers and histogram.owner == origin.library:
            self.recording.journal.append(POINT, time.time_ns(), histogram.point(group, name, numbers, _finite(x)))

    def config(self, origin: Origin, values: Mapping[Any, Any]) -> None:
        """Add to the configuration of the run; that of a second origin has its group before the keys."""
        if values:
            self._config({origin.group: values} if origin.group else values)

    def summary(self, origin: Origin, values: Mapping[Any, Any]) -> None:
        """Add to the results of the run."""
        if values:
            self._summary({origin.group: values} if origin.group else values)

    def not_taken(self, library: str, kind: str) -> None:
        """Count an image, a text, a table, a log record that comes too fast: their number is said at the end."""
        if not switch.on:
            return
        if not self._not_taken:
            atexit.unregister(self.say_not_taken)
            atexit.register(self.say_not_taken)
        self._not_taken[library, kind] = self._not_taken.get((library, kind), 0) + 1
        count = self._not_taken_counts.get((library, kind))
        if count is None:
            own = self._registry.group(OWN_GROUP).own(BRIDGE_NOT_TAKEN)
            count = self._not_taken_counts[library, kind] = own.bind(library=library, kind=kind)
        count(1)

    def say_not_taken(self) -> None:
        """Say the numbers of images, texts and the like."""
        counts, self._not_taken = self._not_taken, {}
        for library in dict.fromkeys(library for library, _ in counts):
            told = ", ".join(f"{kind}: {n}" for (of, kind), n in counts.items() if of == library)
            log.warning("%s: not recorded because they %s: %s", library, _WHY.get(library, "are not numbers"), told)

    def failed(self, library: str, error: Exception) -> None:
        """Count a failure of a bridge, and say the first one."""
        self._registry.count_error(f"bridge {library}")
        message = (
            "%s: could not record a call: %r (further warnings are suppressed; see tachograph_errors_total on /metrics)"
        )
        self._log_once(("failed", library), message, library, error)


def unix_nano(seconds: object) -> int | None:
    """Return a wall time in nanoseconds; None where it is none."""
    found = _finite(seconds)
    return int(found * 1e9) if found is not None and 0 < found < 2**33 else None


def _finite(x: object) -> float | None:
    if x is None:
        return None
    try:
        return finite(x, "a step")
    except (TypeError, ValueError):
        return None


def _some(values: Any) -> list[Any]:
    """Return up to 2,048 of some values as plain numbers."""
    if hasattr(values, "detach"):
        values = values.detach()
    flat = values.reshape(-1) if hasattr(values, "reshape") else list(values)
    few: Any = flat[:: -(-len(flat) // MOST_OF_A_HISTOGRAM) or 1]
    if type(few).__module__.partition(".")[0] == "torch":
        few = few.float().cpu()  # half precision, too; the library has waited for the device already
    return list(few.tolist() if hasattr(few, "tolist") else few)


def _at_once() -> None:
    """Do nothing: the caller waits."""


_everywhere: list[BridgedValues] = []


def bridged_values(recording: Recording) -> BridgedValues:
    """Return the values of the bridges that record there: one object, so that each value counts once."""
    for found in _everywhere:
        if found.recording == recording:
            return found
    _everywhere.append(BridgedValues(recording))
    return _everywhere[-1]


def _after_fork_in_child() -> None:
    for values in _everywhere:
        values.reset()


at_fork("bridged_values", in_child=_after_fork_in_child)
