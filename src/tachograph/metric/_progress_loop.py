"""``progress``: a loop that tells how far it is."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, TypeVar, overload

from tachograph.metric._loop import MOST, Loop
from tachograph.metric.execution import current
from tachograph.recording import registry as registries
from tachograph.recording.chart import MetricGroup, number
from tachograph.recording.naming import check_name

T = TypeVar("T")

_log = logging.getLogger("tachograph")


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
    """Go through anything item by item, and record and show how far that is.

    Write ``for item in progress(items)``. An item counts when it is done, that is when the next one is asked for. The
    journal gets a point at the start, one every 0.1 s, and one at the end, also of a loop that is left early: ``value``
    (items done), ``rate`` (items a second since the start) and, where the length is known, ``total`` and ``eta``
    (seconds); gauges are ``<key>``, ``<key>.rate``, ``<key>.total`` and ``<key>.eta``. Where stderr is a terminal, a
    bar is drawn there.

    Loops may be nested and repeated: the second of a key is ``<key>#2``, and so on. Of many short ones, 100 at once and
    10 a second are recorded.

    Args:
        iterable: what is gone through, item by item as it comes; async iterables with ``async for``.
        key: names the metric.
        group: its chart, or only the name of it.
        total: how many items there will be; by default ``len(iterable)``, where it has one.

    Returns:
        A generator; an async one for an async iterable.

    Raises:
        TypeError: it cannot be iterated, or an argument is of another type.
        ValueError: the key is empty or too long, or ``total`` is negative.
    """
    check_name(key, "metric name")
    if group is not None and not isinstance(group, MetricGroup):
        group = MetricGroup(group)
    items = _total(iterable) if total is None else _checked_total(total)
    if hasattr(iterable, "__aiter__"):
        return _async_items(iterable, key, group, items)
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        raise TypeError(f"progress goes through an iterable, not {type(iterable).__name__}: {iterable!r:.100}")
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
    """Take a step that the program's loop shall not notice."""
    try:
        return step()
    except Exception:  # noqa: BLE001 - the one guard around it: it is counted and said
        registries.default.count_error("progress")
        _log.exception("progress: a loop is not recorded any more")
        loop.forget(current.get())
        return None
