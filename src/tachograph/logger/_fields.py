"""Fields of a point, made of logged values: an int, a float, a string, or the statistics of a list."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tachograph.recording.values import Number, Pending, as_float, fits_int64, leave_device, read

ELEMENTS = 4096  # of an array or tensor that counts as a list of numbers; a larger one becomes a string
_SHORTEST_WAIT, _LONGEST_WAIT = 0.0005, 0.02


class Statistics(NamedTuple):
    """The statistics of a list of numbers, which becomes a field each; NaN where one number is."""

    mean: float
    min: float
    max: float
    median: float


class NoValue(float):
    """The 0.0 of None and of an empty list."""

    __slots__ = ()


NO_VALUE = NoValue(0.0)


class Arriving:
    """A value that is still on its way from a device to the host."""

    __slots__ = ("_ready", "_take")

    def __init__(self, ready: Callable[[], bool], take: Callable[[], object]) -> None:
        self._ready = ready
        self._take = take

    def wait(self, deadline: float) -> Plain:
        """Return the value once it is there; not in the training thread.

        Raises:
            TimeoutError: it had not come at the deadline, on the monotonic clock.
        """
        pause = _SHORTEST_WAIT
        while not self._ready():
            if time.monotonic() >= deadline:
                raise TimeoutError("timed out while copying a value from its device")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)
        return _plain(self._take())


Plain = Number | str | Statistics
Field = Plain | Arriving


def field(value: object) -> Field:  # noqa: PLR0911 - a table
    """Return the field of a value, by the table of the documents; an object that may change later is read now.

    Never waits for a device. Arrays and tensors are lists of numbers, without dimensions they are numbers; integers
    beyond 64 bits become strings, as no receiver takes them.

    Raises:
        Exception: as the program's own object raises it.
    """
    if value is None:
        return NO_VALUE
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        whole = int(value)
        return whole if fits_int64(whole) else str(whole)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return _of_list(value)
    if hasattr(value, "ndim") and hasattr(value, "tolist"):
        return _of_array(value)
    return str(value)


def process_value(value: object) -> Number | str | dict[str, float]:
    """Return the value to write for a field; for a list of numbers, its ``mean``, ``min``, ``max`` and ``median``.

    Ints, floats and strings stay as they are; a bool becomes 0 or 1. A list of ints becomes a string, like a list of
    peers. None and an empty list become 0.0. Anything else becomes its ``str()``. Scalars of NumPy and torch are
    numbers, and their arrays are lists. This function waits for a value on a device; ``log`` does not.
    """
    found = field(value)
    if isinstance(found, Arriving):
        found = found.wait(math.inf)
    if isinstance(found, NoValue):
        return float(found)
    return found._asdict() if isinstance(found, Statistics) else found


def _plain(value: object) -> Plain:
    found = field(value)
    return str(value) if isinstance(found, Arriving) else found


def _of_array(value: Any) -> Field:
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device == "cuda":
        return _from_cuda(value)
    if device != "cpu":
        raise RuntimeError(f"reading a tensor on {value.device} would block: log .item() instead")
    if value.ndim == 0:
        number = value.item()
        return float(number) if hasattr(number, "ndim") else field(number)  # NumPy's long double stays as it is
    if math.prod(value.shape) > ELEMENTS:
        return str(value)
    return _of_list(value.reshape(-1).tolist() if value.ndim > 1 else value.tolist())


def _from_cuda(tensor: Any) -> Field:
    if tensor.numel() > ELEMENTS:
        return f"<{type(tensor).__name__} of {tensor.numel()} elements on {tensor.device}>"
    host, event = leave_device(tensor)
    return Arriving(event.query, lambda: host)


def _of_list(values: Sequence[object]) -> Field:
    if not values:
        return NO_VALUE
    numbers = [_number(part) for part in values]
    if any(number is None for number in numbers):
        return str(values)
    if any(isinstance(number, Pending) for number in numbers):
        return Arriving(
            lambda: all(number.ready() for number in numbers if isinstance(number, Pending)),
            lambda: [number.value() if isinstance(number, Pending) else number for number in numbers],
        )
    if all(isinstance(number, int) for number in numbers):
        return str(numbers)
    return _statistics([as_float(number) for number in numbers if isinstance(number, int | float)])


def _number(part: object) -> Number | Pending | None:
    """Return a part of a list as a number, a bool as it is; None where it is no number."""
    if part.__class__ is float or part.__class__ is int or part.__class__ is bool:
        return part
    if isinstance(part, int | float) or getattr(part, "ndim", None) == 0:
        try:
            return read(part)
        except TypeError:  # a scalar that is no number: a string, a date
            return None
    return None


def _statistics(numbers: list[float]) -> Statistics:
    if any(number != number for number in numbers):  # noqa: PLR0124 - NaN, which cannot be put in order
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (OverflowError, ValueError):  # beyond the range of a float on the way, or both infinities
        mean = sum(number / len(numbers) for number in numbers)
    return Statistics(mean, min(numbers), max(numbers), statistics.median(numbers))
