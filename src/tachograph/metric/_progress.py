"""Progress: loops that record how far they are, and their bars: tqdm's, or HTML in a notebook without its widgets."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar, overload

from tachograph.metric.execution import Execution, current
from tachograph.recording import registry as registries
from tachograph.recording.accumulators import LastValue
from tachograph.recording.chart import Definition, MetricGroup, MetricScale, number
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.logged_points import POINT, elapsed
from tachograph.recording.naming import check_name
from tachograph.recording.points import AttributeValue

_WIDTH, _HEIGHT = 80, 24
SHORTEST = 0.1  # seconds between two drawings
_VIEW = "application/vnd.jupyter.widget-view+json"  # ipywidgets 7 has no method that returns it
_classes: dict[type, Callable[..., Any]] = {}
INTERVAL = 0.1  # seconds a point
LOOPS_A_SECOND, LOOPS_AT_ONCE = 10, 100  # of one key: beyond that a loop draws its bar, and records nothing
MOST = 64  # items without a look at the clock
_LOOK = 0.02  # seconds between looks at the clock, about
_GAUGES = (("", "{item}"), (".rate", "{item}/s"), (".total", "{item}"), (".eta", "s"))
_SCALE = MetricScale(units="item", progress=True, lower=0)
_log = logging.getLogger("tachograph")
_log_once = LogOnce()
T = TypeVar("T")


class Bar(Protocol):
    """A bar on the screen."""

    def draw(self, done: int) -> None:
        """Show how many items are done."""

    def close(self, done: int) -> None:
        """Show it for the last time."""


def is_seen() -> bool:
    """Tell whether a bar would be seen: by a terminal or a notebook, and of a node's ranks this is the first."""
    if os.environ.get("LOCAL_RANK", "0").strip() not in {"", "0"}:
        return False
    if in_notebook():
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, as under pythonw; or closed
        return False


def in_notebook() -> bool:
    """Tell whether the process is the kernel of a notebook, which shows HTML; IPython is not loaded for it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a notebook's cell: tqdm's widget where ipywidgets is installed, else HTML.

    In the end it is HTML alone: a notebook that is saved keeps no widget, and shows where the loop ended.

    Args:
        title: stands before it.
        total: items; None where their number is not known.
        clock: seconds.
    """

    def __init__(self, title: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        from IPython import display

        show: Any = display.display
        self._title, self._total, self._clock = title, total, clock
        self._done, self._start, self._due = 0, clock(), -inf
        self._widget = _widget(title, total)
        self._shown = show(self, display_id=True)

    def draw(self, done: int) -> None:
        """Show how many items are done, a few times a second at most."""
        if self._widget is not None:
            self._widget.update(done - self._widget.n)
        elif (now := self._clock()) >= self._due:
            self._due = now + SHORTEST
            self._update(done)

    def close(self, done: int) -> None:
        """Show it for the last time."""
        widget, self._widget = self._widget, None
        if widget is not None:
            widget.update(done - widget.n)
            widget.close()
            widget.container.close()
        self._update(done)

    def _update(self, done: int) -> None:
        self._done = done
        self._shown.update(self)

    def __repr__(self) -> str:
        return f"{self._title}: {self._done}" + ("" if self._total is None else f"/{self._total}")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the widget while there is one; a page without its code shows the HTML beside it."""
        if self._widget is None:
            return {}
        return {_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self._widget.container.model_id}}

    def _repr_html_(self) -> str:
        from html import escape

        seconds = self._clock() - self._start
        rate = f" · {self._done / seconds:,.1f}/s" if self._done and seconds > 0 else ""
        of = "" if self._total is None else f" of {self._total:,}"
        label = escape(self._title)
        place = f' value="{self._done}" max="{max(self._total, 1)}"' if self._total is not None else ""
        bar = f'<progress aria-label="{label}"{place} style="width:20em"></progress>'
        return f"<div>{label} {bar} {self._done:,}{of}{rate}</div>"


class TerminalBar:
    """A bar of tqdm's.

    Args:
        title: stands before it.
        total: items; None where their number is not known.
        stays: whether it is left on the terminal in the end.
        file: where it is drawn; by default stderr.

    Raises:
        ImportError: tqdm is not installed.
    """

    def __init__(self, title: str, total: int | None, *, stays: bool = True, file: Any = None) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

        width: dict[str, Any] = {"dynamic_ncols": True} if _has_width(file) else {"ncols": _WIDTH, "nrows": _HEIGHT}
        self._bar = _ours(tqdm)(total=total, desc=title, leave=stays, file=file, **width)

    def draw(self, done: int) -> None:
        """Show how many items are done."""
        self._bar.update(done - self._bar.n)

    def close(self, done: int) -> None:
        """Show it for the last time."""
        self.draw(done)
        self._bar.close()


def _has_width(file: Any) -> bool:
    """Tell whether a terminal knows how wide it is: many that programs make say 0, and tqdm then draws nothing."""
    try:
        return os.get_terminal_size((file or sys.stderr).fileno()).columns > 0
    except (OSError, ValueError, AttributeError):
        return False


def _widget(title: str, total: int | None) -> Any:
    """Return a bar of tqdm.notebook that is not shown yet; None where ipywidgets or tqdm is not installed."""
    try:
        import ipywidgets  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401 - tqdm would make half a bar without it
        from tqdm.notebook import tqdm_notebook  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    return _ours(tqdm_notebook)(total=total, desc=title, display=False)


def _ours(base: type) -> Callable[..., Any]:
    """Return a tqdm without the thread that watches slow bars, and without a lock that other processes share."""
    if base not in _classes:
        alone = {"__module__": __name__, "monitor_interval": 0, "_lock": threading.RLock()}
        _classes[base] = partial(type("Tqdm", (base,), alone), mininterval=SHORTEST, miniters=1)
    return _classes[base]


class LoopKey:
    """The loops of one key in one execution, one after the other or nested.

    Attributes:
        loops: how many have recorded.
        open: the places that are taken: nested loops have gauges of their own, those that follow share them.
    """

    __slots__ = ("_allowed", "_gauges", "_since", "_taking", "loops", "open")

    def __init__(self) -> None:
        self.loops = 0
        self._gauges: dict[int, tuple[LastValue, ...]] = {}
        self._taking = threading.RLock()
        self.open: set[int] = set()
        self._allowed, self._since = float(LOOPS_AT_ONCE), -inf

    def admit(self, now: float) -> bool:
        """Tell whether one more loop may record: thousands of short ones are too many for a page."""
        more = min(LOOPS_AT_ONCE, (now - self._since) * LOOPS_A_SECOND)
        self._allowed, self._since = min(self._allowed + more, LOOPS_AT_ONCE), now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def take_place(self) -> int:
        """Return the first place that is free."""
        with self._taking:
            place = next(place for place in itertools.count(1) if place not in self.open)
            self.open.add(place)
        return place

    def gauges(self, place: int, definition: Definition, execution: Execution) -> tuple[LastValue, ...]:
        """Return the gauges of a place: how many items are done, the rate, the total, and the time that is left."""
        found = self._gauges.get(place)
        if found is None:
            labels = {} if place == 1 else {"loop": str(place)}
            found = tuple(execution.gauge(definition, suffix, unit, **labels) for suffix, unit in _GAUGES)
            self._gauges[place] = found
        return found


class Loop:
    """One loop.

    Attributes:
        done: how many items are done.

    Args:
        key: of the metric; the second loop of a key is called ``<key>#2`` in the journal.
        group: of the metric.
        total: how many items there will be; None where that is not known.
        execution: where it records.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_bar",
        "_due",
        "_execution",
        "_gauges",
        "_key",
        "_labels",
        "_last",
        "_lock",
        "_looked",
        "_loops",
        "_place",
        "_start",
        "_step",
        "_total",
        "done",
    )

    def __init__(self, key: str, group: MetricGroup | None, total: int | None, execution: Execution) -> None:
        self.done = 0
        self._key = Definition(key, group, _SCALE)
        self._total, self._execution = total, execution
        self._bar: Bar | None = None
        self._labels: Mapping[str, AttributeValue] | None = None
        self._gauges: tuple[LastValue, ...] = ()
        self._lock = threading.Lock()
        self._loops: LoopKey = execution.keys.setdefault(key, LoopKey())
        self._place = self._loops.take_place()
        self._start = self._looked = execution.clock()
        self._due, self._step, self._last = -inf, 1, -1
        self._asked = False  # a point is wanted, and the thread that holds the lock makes it

    def begin(self) -> None:
        """Record that nothing is done yet."""
        execution = self._execution
        if is_seen():
            self._bar = _bar(self._key.key, self._total, self._place)
        if not execution.records:
            return
        self._gauges = self._loops.gauges(self._place, self._key, execution)
        if self._loops.admit(self._start):
            self._loops.loops += 1
            if self._loops.loops > 1:
                self._key = self._key._replace(key=f"{self._key.key}#{self._loops.loops}")
            execution.loops.add(self)
            execution.define(self._key)
            self._labels = execution.labels(self._key)
        else:
            execution.registry.count_dropped("throttled", "journal")
        self._record(self._start)

    def look(self) -> int:
        """Record and draw where it is time for it, and return after how many items to look again."""
        now = self._execution.clock()
        since, self._looked = now - self._looked, now
        if since < _LOOK:
            self._step = min(self._step * 2, MOST)
        elif since > _LOOK * 2:
            self._step = max(1, min(self._step // 2, int(self._step * _LOOK / since)))
        if now >= self._due:
            self._record(now)
        if self._bar is not None:
            self._draw(self._bar.draw)
        return self.done + self._step

    def end(self) -> None:
        """Record how far it came."""
        self._loops.open.discard(self._place)
        self._execution.loops.discard(self)
        if self.done != self._last:
            self._record(self._execution.clock())
        if self._bar is not None:
            self._draw(self._bar.close)

    def forget(self, _execution: Execution) -> None:
        """Record nothing any more."""
        self._labels, self._gauges, self._bar = None, (), None

    def pass_on(self, *, everything: bool) -> None:
        """Record how far it is, where that is due: an item may take long."""
        now = self._execution.clock()
        if self.done != self._last and (everything or now >= self._due):
            self._record(now)

    def define_again(self) -> None:
        """Log its definition once more: a loop may take days."""
        if self._labels is not None:
            self._execution.define(self._key)

    def _record(self, now: float) -> None:
        self._asked = True
        while self._asked and not self._lock.locked():
            with self._lock:
                self._asked = False
                self._record_now(now)
            now = self._execution.clock()

    def _record_now(self, now: float) -> None:
        done = self._last = self.done
        self._due = now + INTERVAL
        seconds = now - self._start
        rate = done / seconds if done and seconds > 0 else None
        left = None if self._total is None or rate is None else max(self._total - done, 0) / rate
        said = {"value": float(done), "rate": rate, "total": self._total, "eta": left}
        for gauge, value in zip(self._gauges, said.values(), strict=False):
            if value is not None:
                gauge.record(float(value))
        if self._labels is not None:
            at = time.time_ns()
            x = now - self._execution.start
            known = {key: value for key, value in said.items() if value is not None}
            where = {"x": x, "branch": self._execution.branch, "elapsed": elapsed(at)}
            self._execution.journal.append(POINT, at, {**self._labels, **where, **known})

    def _draw(self, how: Callable[[int], None]) -> None:
        try:
            how(self.done)
        except Exception as error:  # noqa: BLE001 - a terminal that has gone away
            pass_on(error)
            self._bar = None
            registries.default.count_error("progress")
            _log.warning("progress: stopped drawing the progress bar: %s: %s", type(error).__name__, error)


def _bar(title: str, total: int | None, place: int) -> Bar | None:
    try:
        return NotebookBar(title, total) if in_notebook() else TerminalBar(title, total, stays=place == 1)
    except ImportError:
        _log_once("tqdm", "progress: cannot draw a progress bar because tqdm is not installed: pip install tqdm")
    except Exception as error:  # noqa: BLE001 - a terminal that is none
        pass_on(error)
        registries.default.count_error("progress")
        _log_once("bar", "progress: could not draw the progress bar", level=logging.ERROR, exc_info=True)
    return None


@overload
def progress(
    iterable: AsyncIterable[T],
    key: str = "progress",
    *,
    group: str | MetricGroup | None = None,
    total: int | None = None,
) -> AsyncGenerator[T, None]: ...
@overload
def progress(
    iterable: Iterable[T], key: str = "progress", *, group: str | MetricGroup | None = None, total: int | None = None
) -> Generator[T, None, None]: ...
def progress(
    iterable: Any, key: str = "progress", *, group: str | MetricGroup | None = None, total: int | None = None
) -> Any:
    """Iterate over items, show a progress bar, and record the progress.

    Use it as ``for item in progress(items)``. An item counts as done when the loop asks for the next one. A point is
    recorded at the start, every 0.1 s, and at the end, also if the loop breaks: ``value`` (items done), ``rate`` (items
    per second since the start) and, if the length is known, ``total`` and ``eta`` (seconds). The gauges are ``<key>``,
    ``<key>.rate``, ``<key>.total`` and ``<key>.eta``. The bar is drawn on stderr if that is a terminal, and in a
    notebook in the cell's output (with ``tqdm.notebook``, or as HTML without ipywidgets).

    Loops can be nested and repeated: the second loop of a key is ``<key>#2``, and so on. Of many short loops, the first
    100 at once and 10 per second are recorded.

    Args:
        iterable: the items, or an async iterable for ``async for``; items are fetched one at a time.
        key: the metric's name.
        group: its chart, or the chart's name.
        total: the number of items; by default ``len(iterable)``, if it has a length.

    Returns:
        A generator; an async generator for an async iterable.

    Raises:
        TypeError: ``iterable`` is not iterable, or an argument has the wrong type.
        ValueError: the key is empty or too long, or ``total`` is negative.
    """
    check_name(key, "metric name")
    if group is not None and not isinstance(group, MetricGroup):
        group = MetricGroup(group)
    items = _total(iterable) if total is None else _checked_total(total)
    if hasattr(iterable, "__aiter__"):
        return _async_items(iterable, key, group, items)
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        hint = f"; write progress(range({iterable}))" if isinstance(iterable, int) else ""
        raise TypeError(f"progress() takes an iterable, not {type(iterable).__name__}: {iterable!r:.100}{hint}")
    return _items(iterable, key, group, items)


def _total(iterable: Any) -> int | None:
    with suppress(Exception):  # the border to user code: a data loader of a stream raises TypeError here
        return len(iterable)
    return None


def _checked_total(total: object) -> int:
    found = number(total, "total")
    if found - found or found != int(found) or found < 0:
        raise ValueError(f"total must be a whole number of items, 0 or more: {total!r:.100}")
    return int(found)


def _items(iterable: Iterable[T], key: str, group: MetricGroup | None, total: int | None) -> Generator[T, None, None]:
    loop = _begun(key, group, total)
    try:
        done, next_look = 0, 1
        for item in iterable:
            yield item
            loop.done = done = done + 1
            if done >= next_look:
                next_look = _looked(loop)
    finally:
        _ended(loop)


async def _async_items(
    iterable: AsyncIterable[T], key: str, group: MetricGroup | None, total: int | None
) -> AsyncGenerator[T, None]:
    loop = _begun(key, group, total)
    try:
        done, next_look = 0, 1
        async for item in iterable:
            yield item
            loop.done = done = done + 1
            if done >= next_look:
                next_look = _looked(loop)
    finally:
        _ended(loop)


def _begun(key: str, group: MetricGroup | None, total: int | None) -> Loop:
    loop = Loop(key, group, total, current.get())
    _guarded(loop.begin, loop)
    return loop


def _looked(loop: Loop) -> int:
    return _guarded(loop.look, loop) or loop.done + MOST


def _ended(loop: Loop) -> None:
    _guarded(loop.end, loop)


def _guarded(step: Callable[[], Any], loop: Loop) -> Any:
    """Return the result of a step, or None where it fails: the program's loop goes on."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - the one guard around it: it is counted and said
        pass_on(error)
        registries.default.count_error("progress")
        _log.exception("progress: stopped recording a loop")
        loop.forget(current.get())
        return None
