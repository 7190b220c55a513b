"""The configuration of a run, and its results: dictionaries that lie beside its curves."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, cast

from tachograph.identity.masking import masked
from tachograph.recording.forking import at_fork
from tachograph.recording.interrupts import pass_on
from tachograph.recording.journal import CONFIG, SUMMARY, Journal
from tachograph.recording.journal import default as default_journal
from tachograph.recording.log import LogOnce
from tachograph.recording.points import AttributeValue, encodable
from tachograph.recording.registry import Registry
from tachograph.recording.registry import default as default_registry
from tachograph.recording.values import element_count, fits_int64, plain, shown, unwrapped

MOST_KEYS = 512
_DEPTH = 32  # of nested mappings and lists: one that holds itself has no end
_TEXT = 4096  # characters of a text, or of a key
MOST_ITEMS = 10_000  # of the value of one key, at all depths
_TORCH_NAMES = frozenset({"dtype", "device", "layout", "memory_format"})

_Fields = tuple[list[Any], Callable[[Any], object]]  # the keys of an object, and a function that reads one


class _NotKeptError(TypeError):
    """A value that cannot be converted to JSON, or is too large."""


class Dictionary:
    """One dictionary of this process, of which each change is an event with all of it.

    Args:
        name: of the event, of the attribute that holds the dictionary, and of the call in messages.
        registry: where keys are counted that cannot be kept.
        journal: where the events go.
    """

    def __init__(self, name: str, *, registry: Registry, journal: Journal) -> None:
        self._name, self._registry, self._journal = name, registry, journal
        self._log_once = LogOnce()
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.RLock()  # a signal handler may call in the middle of a call
        self._values: dict[str, AttributeValue] = {}
        self._logged = ""

    def merge(self, values: object) -> None:
        """Add keys, or give them other values, and log the dictionary where that has changed it.

        Raises:
            TypeError: it is no mapping, no argparse Namespace and no dataclass.
        """
        found = dict(self._flattened("", _fields_or_error(values, self._name), 0))
        with self._lock:
            for key, value in found.items():
                if key not in self._values and len(self._values) >= MOST_KEYS:
                    self._registry.count_dropped("attribute", "journal")
                    message = (
                        "%s: dropped key %r, there are already %d keys "
                        "(further warnings are suppressed; see tachograph_dropped_total on /metrics)"
                    )
                    self._log_once("keys", message, self._name, key[:100], MOST_KEYS)
                    continue
                self._values[key] = value
            now = repr(self._values)  # NaN is not equal to itself
            if now != self._logged:
                self._logged = now
                told = {self._name: dict(self._values)}  # a map as an attribute, as a logger's tags are
                self._journal.append(self._name, time.time_ns(), cast("Mapping[str, AttributeValue]", told))

    def _flattened(self, prefix: str, fields: _Fields, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the values of nested mappings by their dotted keys; an empty mapping inside another one is a value."""
        keys, read_field = fields
        for key in keys:
            name = prefix
            try:
                name = encodable(f"{prefix}{key}")[:_TEXT]
                value = read_field(key)
                inner = _fields_of(value)
                if inner is not None and inner[0] and depth < _DEPTH:
                    yield from self._flattened(f"{name}.", inner, depth + 1)
                else:
                    yield name, _json_form(name, value, depth, itertools.count(1))
            except _NotKeptError as error:
                self._lose(str(error), name)
            except Exception as error:  # noqa: BLE001 - the border to user code: any object's __str__ may fail
                pass_on(error)
                self._lose(shown(error), name)

    def _lose(self, why: str, key: str) -> None:
        self._registry.count_dropped("attribute", "journal")
        self._log_once(key, "%s: dropped key %r: %s", self._name, key[:100], why)


def _json_form(name: str, value: object, depth: int, items: Iterator[int]) -> Any:
    """Return a value as JSON can say it: null, booleans, numbers, texts, lists and maps, at any depth.

    Args:
        name: the dotted key of the value: secrets are known by it.
        value: of the program.
        depth: of the value.
        items: counts the items of one key's value.

    Raises:
        TypeError: JSON cannot say it, or it has too many items.
    """
    if next(items) > MOST_ITEMS:
        raise _NotKeptError(f"it has more than {MOST_ITEMS:,} items")
    fields = _fields_of(value)
    if fields is None:
        value = _simple(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if fits_int64(value) else str(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return masked(name, encodable(str.__str__(value)))[:_TEXT]
    if depth >= _DEPTH:
        raise _NotKeptError(f"it is nested more than {_DEPTH} levels deep")
    if fields is not None:
        keys, read_field = fields
        by_text = {encodable(str(key))[:_TEXT]: read_field(key) for key in keys}
        return {key: _json_form(f"{name}.{key}", part, depth + 1, items) for key, part in by_text.items()}
    return [_json_form(name, part, depth + 1, items) for part in _parts_of(value)]


def _simple(value: object) -> object:
    """Return the text or number that a value of a configuration stands for; other values as they are."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str | int | float) else value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "torch" and type(value).__name__ in _TORCH_NAMES:
        return str(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item"):
        return _simple(unwrapped(value)) if element_count(value) == 1 else value
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")  # a Decimal and a Fraction, too
    return plain(value) if is_number and not isinstance(value, int | float) else value


def _parts_of(value: object) -> Iterable[object]:
    """Return the items of a sequence, a set or an array."""
    if hasattr(value, "tolist") and not isinstance(value, memoryview):
        if element_count(value) > MOST_ITEMS:
            raise _NotKeptError(f"it has more than {MOST_ITEMS:,} items")
        return cast("list[object]", value.tolist())
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray | memoryview):
        return value
    raise _NotKeptError(f"{type(value).__name__} cannot be converted to JSON")


def _fields_or_error(values: object, name: str) -> _Fields:
    fields = _fields_of(values)
    if fields is None:
        kind = type(values).__name__
        raise TypeError(f"{name}() takes a mapping, an argparse Namespace or a dataclass, not {kind}: {shown(values)}")
    return fields


def _fields_of(value: object) -> _Fields | None:
    """Return the keys of a mapping, a Namespace or a dataclass, and a function that reads a key; None for all else.

    Each value is read by itself: one that raises, such as one that OmegaConf is missing, costs no other.
    """
    if isinstance(value, Mapping):
        return list(value), value.__getitem__
    argparse = sys.modules.get("argparse")  # a program that has a Namespace has loaded it; others pay no milliseconds
    if argparse is not None and isinstance(value, argparse.Namespace):
        return list(vars(value)), vars(value).__getitem__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)], partial(getattr, value)
    return None


_config = Dictionary(CONFIG, registry=default_registry, journal=default_journal)
_summary = Dictionary(SUMMARY, registry=default_registry, journal=default_journal)


def config(values: object) -> None:
    """Record the configuration of the run: hyperparameters, paths, flags. Further calls add to it.

    The configuration appears on the run's page, in ``tachograph runs show`` and in :attr:`tachograph.runs.Run.config`.
    Nested mappings become keys with dots (``optimizer.lr``). JSON values are stored as they are: numbers, booleans,
    strings, None, and lists and mappings of these at any depth. Tuples, ranges, sets and arrays become lists. A
    ``Decimal``, a ``Fraction`` and an array of one element become numbers. A path, an enum member, a type, a function,
    a ``torch.dtype`` and a ``torch.device`` become strings. Strings under a name such as ``api_key`` or ``password``
    are stored as ``***``; so are the user and password in a URL. A run stores at most 512 keys and at most 10,000 items
    per key. A value that cannot be stored is dropped and counted, and a warning names its key.

    Args:
        values: a mapping, an ``argparse.Namespace`` or a dataclass.

    Raises:
        TypeError: the values have another type.
    """
    _config.merge(values)


def summary(values: object) -> None:
    """Record results of the run, such as its final accuracy. Further calls add to them, and newer values win.

    Args:
        values: a mapping, an ``argparse.Namespace`` or a dataclass; see :func:`config`.

    Raises:
        TypeError: the values have another type.
    """
    _summary.merge(values)


def _after_fork_in_child() -> None:
    _config.reset()
    _summary.reset()


at_fork("config", in_child=_after_fork_in_child)
