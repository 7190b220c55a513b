"""``@prof``: the calls of a function, their durations and their outcomes.

A profiled function's place is taken by one of the same kind (``profiled``), whose calls a ``probe`` records: into the
registry, for a handler of the group, and, where the program traces, as a span (``tracing``).

Beside the names below, the doors and the instrumentors use these three modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, overload

from tachograph.profiling.probe import Probe, metric_name
from tachograph.profiling.profiled import MARK, profiled
from tachograph.recording import registry
from tachograph.recording.log import warn_deprecated
from tachograph.recording.naming import check_name

DEFAULT_GROUP = "torchelastic"

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
D = TypeVar("D", bound="staticmethod[Any, Any] | classmethod[Any, Any, Any] | property | cached_property[Any]")


class Decorator:
    """The decorator that ``@prof(group=…)`` applies; it keeps the kind and the signature of the decorated object."""

    __slots__ = ("_bare", "_group", "_heard_as")

    def __init__(self, group: str, *, heard_as: str | None, bare: bool = False) -> None:
        self._group = check_name(group, "metric group")
        self._heard_as = heard_as
        self._bare = bare

    @overload
    def __call__(self, fn: C) -> C: ...
    @overload
    def __call__(self, fn: D) -> D: ...  # type: ignore[overload-overlap] # a staticmethod is callable, too
    @overload
    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]: ...
    def __call__(self, fn: Any) -> Any:
        """Return ``fn`` profiled."""
        if isinstance(fn, staticmethod | classmethod):
            return type(fn)(self._once(fn.__func__))
        if isinstance(fn, property):
            return self._property(fn)
        if isinstance(fn, cached_property):
            return self._cached_property(fn)
        if inspect.isclass(fn):
            return self._class(fn)
        if not callable(fn):
            raise TypeError(
                f"prof decorates functions, methods and classes, not {type(fn).__name__}: {fn!r:.100}. "
                "Pass a group as @prof(group=…)"
            )
        name = check_name(metric_name(fn))
        if not registry.default.enabled:
            return fn
        probe = Probe(fn, self._group, heard_as=self._heard_as, bare=self._bare)
        probe.name = name
        return profiled(fn, probe)

    def _once(self, fn: Any) -> Any:
        return fn if fn is None or hasattr(fn, MARK) else self(fn)

    def _property(self, found: property) -> property:
        """Profile those not profiled yet: ``@prof`` may stand above each of getter, setter and deleter."""
        getter, setter, deleter = (self._once(part) for part in (found.fget, found.fset, found.fdel))
        return found.getter(getter).setter(setter).deleter(deleter)

    def _cached_property(self, found: cached_property[Any]) -> cached_property[Any]:
        made = type(found)(self._once(found.func))
        if found.attrname is not None:
            made.__set_name__(type(None), found.attrname)
        return made

    def _class(self, cls: type) -> type:
        """Profile the public methods that the class itself defines."""
        for name, member in list(vars(cls).items()):
            fn = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            defined_here = inspect.isfunction(fn) and fn.__qualname__ == f"{cls.__qualname__}.{name}"
            if defined_here and not name.startswith("_") and not hasattr(fn, MARK):
                setattr(cls, name, self(member))
        return cls


@overload
def prof(fn: None = None, group: str = DEFAULT_GROUP) -> Decorator: ...
@overload
def prof(fn: C, group: str = DEFAULT_GROUP) -> C: ...
@overload
def prof(fn: D, group: str = DEFAULT_GROUP) -> D: ...  # type: ignore[overload-overlap] # as above
@overload
def prof(fn: Callable[P, R], group: str = DEFAULT_GROUP) -> Callable[P, R]: ...
def prof(fn: Any = None, group: str = DEFAULT_GROUP) -> Any:
    """Measure each call of a function: ``@prof``, ``@prof()`` or ``@prof(group=…)``.

    Exporters receive the histogram ``function.duration`` (seconds), the counter ``function.calls`` (by outcome,
    failures by ``error.type``) and, if the program traces, a span per call. A handler configured for the group receives
    ``<name>.success`` or ``<name>.failure`` with the value 1, then ``<name>.duration.ms`` (an int). The name is the
    function's qualified name, or ``<leaf module>.<function>`` if that has no dot.

    Coroutines, generators and async generators are measured over their whole run, from the first step on; closing one
    early is not a failure. Any exception is a failure, ``KeyboardInterrupt`` included, and is raised as usual. On a
    class, the public methods that it defines itself are measured. You can combine ``@prof`` with ``staticmethod``,
    ``classmethod`` and ``property`` in any order.

    Args:
        fn: the function, method or class.
        group: the metric group.

    Raises:
        TypeError: the decorated object cannot be called, or the group is not a string.
        ValueError: the name of the group or the function is too long.
    """
    decorator = Decorator(group, heard_as=group)
    return decorator if fn is None else decorator(fn)


def profile(group: str | None = None) -> Decorator:
    """Measure each call under the function's bare name. Deprecated: use ``@prof(group=…)``."""
    warn_deprecated("profile is deprecated: use @prof(group=…)")
    return Decorator(DEFAULT_GROUP if group is None else group, heard_as=group, bare=True)
