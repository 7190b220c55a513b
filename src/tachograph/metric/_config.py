"""The configuration of a run, and its results: dictionaries that lie beside its curves."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
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
from tachograph.recording.values import fits_int64, shown, unwrapped

MOST_KEYS = 512
_DEPTH = 32  # of nested mappings: one that holds itself has no end
_TEXT = 4096  # characters of a value, or of a key
_ITEMS = 256  # of a list
_TORCH_NAMES = frozenset({"dtype", "device", "layout", "memory_format"})


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
        found = dict(self._flattened("", _items(values, self._name), 0))
        with self._lock:
            for key, value in found.items():
                if key not in self._values and len(self._values) >= MOST_KEYS:
                    self._lose(f"more than {MOST_KEYS} keys", key)
                    continue
                self._values[key] = value
            now = repr(self._values)  # NaN is not equal to itself
            if now != self._logged:
                self._logged = now
                told = {self._name: dict(self._values)}  # a map as an attribute, as a logger's tags are
                self._journal.append(self._name, time.time_ns(), cast("Mapping[str, AttributeValue]", told))

    def _flattened(self, prefix: str, items: Iterator[tuple[object, object]], depth: int) -> Iterator[tuple[str, Any]]:
        for key, value in items:
            name = prefix
            try:
                name = encodable(f"{prefix}{key}")[:_TEXT]
                inner = _inner(value)
                if inner is not None and depth < _DEPTH:
                    yield from self._flattened(f"{name}.", inner, depth + 1)
                else:
                    yield name, self._kept(name, value)
            except Exception as error:  # noqa: BLE001 - the border to user code: any object's __str__ may fail
                pass_on(error)
                self._lose(f"{type(value).__name__} is nothing that can be kept", name)

    def _kept(self, name: str, value: object) -> AttributeValue:
        if isinstance(value, list | tuple | set | frozenset):
            parts = [self._scalar(name, part) for part in list(value)[:_ITEMS]]
            kinds = {type(part) for part in parts}
            return parts if len(kinds) <= 1 else [str(part) for part in parts]  # type: ignore[return-value]
        return self._scalar(name, value)

    def _scalar(self, name: str, value: object) -> str | bool | int | float:
        value = _simple(value)
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if fits_int64(value) else str(int(value))
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            text = encodable(str.__str__(value))
            return masked(name, text)[:_TEXT]
        raise TypeError

    def _lose(self, why: str, key: str) -> None:
        self._registry.count_dropped("attribute", "journal")
        self._log_once(why, "%s: %r was not kept (further ones are counted): %s", self._name, key[:100], why)


def _simple(value: object) -> object:
    """Return the text or number that a value of a configuration stands for; other values as they are."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str | int | float) else value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or (type(value).__module__ == "torch" and type(value).__name__ in _TORCH_NAMES):
        return str(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return unwrapped(value)
    return value


def _items(values: object, name: str) -> Iterator[tuple[object, object]]:
    inner = _inner(values)
    if inner is None:
        kind = type(values).__name__
        raise TypeError(f"{name}() takes a mapping, an argparse Namespace or a dataclass, not {kind}: {shown(values)}")
    return inner


def _inner(value: object) -> Iterator[tuple[object, object]] | None:
    """Return the keys and values of a mapping, a Namespace or a dataclass; None for all else."""
    if isinstance(value, Mapping):
        return iter(list(value.items()))
    argparse = sys.modules.get("argparse")  # a program that has a Namespace has loaded it; others pay no milliseconds
    if argparse is not None and isinstance(value, argparse.Namespace):
        return iter(list(vars(value).items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter([(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)])
    return None


_config = Dictionary(CONFIG, registry=default_registry, journal=default_journal)
_summary = Dictionary(SUMMARY, registry=default_registry, journal=default_journal)


def config(values: object) -> None:
    """Keep the configuration of the run: hyperparameters, paths, flags. Called again, it adds to it.

    It lies beside the curves: on the page, in ``tachograph runs show`` and in :attr:`tachograph.runs.Run.config`.
    Nested mappings become keys with dots (``optimizer.lr``). A value is a number, a boolean, a string, a path, an
    enumeration's member, a type or function (by its name), a ``torch.dtype`` or ``torch.device``, or a list of these;
    None is the text ``None``. Strings under a name such as ``api_key`` or ``password`` are kept as ``***``, and user
    and password in a URL as well. At most 512 keys are kept; what cannot be kept is counted and said once.

    Args:
        values: a mapping, an ``argparse.Namespace`` or a dataclass.

    Raises:
        TypeError: it is something else.
    """
    _config.merge(values)


def summary(values: object) -> None:
    """Keep results of the run: its final accuracy, its best epoch. Called again, it adds to them, and newer ones win.

    Args:
        values: a mapping, an ``argparse.Namespace`` or a dataclass; see :func:`config`.

    Raises:
        TypeError: it is something else.
    """
    _summary.merge(values)


def _after_fork_in_child() -> None:
    _config.reset()
    _summary.reset()


at_fork("config", in_child=_after_fork_in_child)
