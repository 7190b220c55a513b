"""Calls inside of calls: a trainer that hands a value on to three trackers has logged it once.

The outermost call of a bridge that knows its values declares them, by leaf: the name without its group. A bridge that
is called inside of it passes over a value of the same leaf and size; float32 is all that TensorBoard keeps of one. A
value that is on a device is not waited for: its leaf alone tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tachograph.metric import alike
from tachograph.recording.values import Number, Pending, is_readable, read

_DEPTH = 32  # of nested dictionaries: one that holds itself has no end
_PREFIXES = ("train_", "eval_", "test_", "val_")


def leaf_of(tag: str) -> str:
    """Return the name of a value without its group: ``loss`` for ``train/loss`` and ``eval_loss``."""
    leaf = tag.rpartition("/")[2]
    for prefix in _PREFIXES:
        if leaf.startswith(prefix) and leaf != prefix:
            return leaf.removeprefix(prefix)
    return leaf


Brought = Mapping[str, list[Number | None]]
"""Values by leaf; None for one that is on a device."""


def flattened(values: Mapping[Any, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield names and values; nested ones have a slash between their names, as most libraries join them."""
    for name, value in values.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from flattened(value, f"{prefix}{name}/", depth + 1)
        else:
            yield f"{prefix}{name}", value


def numbers_by_leaf(values: Mapping[Any, object]) -> dict[str, list[Number | None]]:
    """Return the numbers among values, by leaf."""
    found: dict[str, list[Number | None]] = {}
    for tag, value in flattened(values):
        if is_readable(value):
            number = None if _is_on_a_device(value) else read(value)
            found.setdefault(leaf_of(tag), []).append(None if isinstance(number, Pending) else number)
    return found


def _is_on_a_device(value: object) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


class OutermostCall:
    """The outermost call of a bridge that is under way in this thread.

    Args:
        brings: the values that it will record itself, by leaf.
    """

    def __init__(self, brings: Brought) -> None:
        self._brings = brings
        self._passed_over: list[Callable[[], object]] = []

    def passes_over(self, leaf: str, value: object, record: Callable[[], object]) -> bool:
        """Tell whether a value is one of the call's own; ``record`` is kept for a call that fails."""
        own = self._brings.get(leaf)
        if own is None or not is_readable(value):
            return False
        if not _is_on_a_device(value) and not any(number is None or alike(read(value), number) for number in own):
            return False
        self._passed_over.append(record)
        return True

    def failed(self) -> None:
        """Record the values that were passed over: the call has raised, and records nothing itself."""
        passed_over, self._passed_over = self._passed_over, []
        for record in passed_over:
            record()


class _Calls(threading.local):
    outermost: OutermostCall | None = None


calls = _Calls()
under_way: set[OutermostCall] = set()  # those of all threads: a look at it costs a quarter of one at ``calls``
