"""Values: Python, NumPy and torch scalars, and how each becomes a plain ``int`` or ``float``.

An object that cannot change is read at once; one that can (an array, a CPU tensor) is read at the call as well, so that
the program may overwrite it afterwards. A CUDA tensor is copied to pinned memory without waiting and becomes a
:class:`Pending`, which is asked again later: the training thread never waits for a device.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Protocol

from tachograph.recording.cuda_captures import captures
from tachograph.recording.interrupts import pass_on

Number = int | float

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT64_MAX = 2**64 - 1  # the latest time that OTLP can say


class _Event(Protocol):
    def query(self) -> bool: ...


class Pending:
    """A number that is still on its way from a device to the host."""

    __slots__ = ("_event", "_failed", "_host")

    def __init__(self, host: Any, event: _Event) -> None:
        self._host = host
        self._event = event
        self._failed: Exception | None = None

    def ready(self) -> bool:
        """Tell whether the copy has arrived, without waiting for it; or never will, as its device has failed.

        It has not while a CUDA graph is captured.
        """
        try:
            return captures.has_passed(self._event.query)
        except Exception as error:  # noqa: BLE001 - after an illegal access every call of CUDA fails
            pass_on(error)
            self._failed = error
            return True

    def value(self) -> Number:
        """Return the number; call it only once :meth:`ready` says so.

        Raises:
            RuntimeError: its device has failed.
            TypeError: it is no number, but a complex one.
        """
        if self._failed is not None:
            raise RuntimeError(f"could not copy a value from its device: {self._failed}") from self._failed
        return plain(self._host.item())


def plain(value: object) -> Number:
    """Return ``value`` as a Python ``int`` or ``float``; a bool becomes 0 or 1.

    Raises:
        TypeError: ``value`` is no number (``None``, a string, a complex number, an object without ``__float__``).
    """
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    long_complex = getattr(getattr(value, "dtype", None), "kind", "") == "c"  # float() would take its real part
    if long_complex or (not hasattr(value, "__float__") and not hasattr(value, "__index__")):
        raise TypeError(f"{shown(value)} ({type(value).__name__}) is not a number")
    return float(value)  # type: ignore[arg-type]


def unwrapped(value: Any) -> object:
    """Return a scalar of NumPy or torch as an object of Python; a long double as the nearest float.

    Raises:
        TypeError: Python has no such object.
    """
    found: object = value.item()
    if not hasattr(found, "item"):
        return found
    return plain(found)  # np.longdouble and np.clongdouble return themselves


def shown(value: object, most: int = 100) -> str:
    """Return up to ``most`` characters of an object's ``repr()`` for a message, or its type where that raises."""
    try:
        return repr(value)[:most]
    except Exception as error:  # noqa: BLE001 - the border to user code, in the middle of an error message
        pass_on(error)
        return f"<{type(value).__name__}>"


def read(value: object) -> Number | Pending:
    """Read anything a program may hand over as a number, now.

    Args:
        value: a Python, NumPy or torch scalar, or an array or tensor of one element.

    Raises:
        TypeError: it is not a number, or has more or fewer elements than one.
        RuntimeError: a CUDA graph is being captured, or the tensor has no data that can be read without waiting.
    """
    item = getattr(value, "item", None)
    if item is None:
        return plain(value)
    elements = element_count(value)
    if elements != 1:
        raise TypeError(f"a {type(value).__name__} of {elements} elements is not a single number")
    device = getattr(value, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind == "cuda":
        return Pending(*leave_device(value))
    if kind != "cpu":
        raise RuntimeError(f"reading a tensor on {device} would block: record .item() instead")
    return plain(item())


def element_count(array: object) -> int:
    """Return the number of elements of an array or a tensor; 1 for an object that does not say it."""
    size = getattr(array, "size", 1)
    elements = size() if callable(size) else size
    return elements if isinstance(elements, int) else math.prod(elements)


def is_readable(value: object) -> bool:
    """Tell whether :func:`read` takes a value; of one on a device that is not known yet, and True."""
    if value.__class__ is float or getattr(getattr(value, "device", None), "type", "cpu") == "cuda":
        return True
    try:
        read(value)
    except Exception as error:  # noqa: BLE001 - the border to user code: any object's __float__ or item() may fail
        pass_on(error)
        return False
    return True


def leave_device(tensor: Any) -> tuple[Any, Any]:
    """Begin to copy a CUDA tensor into pinned memory, on its stream: nothing waits for the device.

    Returns:
        The copy, and the event that says when it is there.

    Raises:
        RuntimeError: a CUDA graph is being captured.
    """
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("values cannot be read while a CUDA graph is being captured")
    captures.follow(torch.cuda)
    source = tensor.detach()
    host = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
    host.copy_(source, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(source.device))
    return host, event


def is_finite(value: Number) -> bool:
    """Tell whether ``value`` is neither NaN nor infinite; an ``int`` always is."""
    return isinstance(value, int) or math.isfinite(value)


def as_float(value: Number) -> float:
    """Return ``value`` as a float; an integer beyond the range of a float becomes an infinity of its sign."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def fits_int64(value: Number) -> bool:
    """Tell whether OTLP can carry ``value`` as an integer (``sfixed64``)."""
    return isinstance(value, int) and INT64_MIN <= value <= INT64_MAX


def numpy() -> Any:
    """Return NumPy where the program has imported it already, else ``None``: we never import it ourselves."""
    module = sys.modules.get("numpy")
    return module if hasattr(module, "frombuffer") else None
