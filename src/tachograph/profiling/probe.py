"""Probe of a profiled function: its calls as metrics, spans and a handler's points."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph.profiling.tracing import TRACE, Span, tracer_for
from tachograph.recording import registry
from tachograph.recording.accumulators import Distribution
from tachograph.recording.instrument import FunctionCalls
from tachograph.recording.kept_calls import KeptCall, message_of

Tell = Callable[[str, object], None]


def nobody(name: str, value: object) -> None:
    """Do nothing: the group has no handler."""


def silence(name: str, value: object) -> None:
    """Do nothing: the group has been silenced, and is not recorded either."""


class Audience:
    """The handlers of each group, as a front door names them; none until it does.

    Attributes:
        epoch: another object after each change, so that a profiled function sees at a glance whether to ask again.
        listener: returns the function that takes the points of a group.
        name: returns the name of a function's metrics.
    """

    __slots__ = ("epoch", "listener", "name")

    def __init__(self) -> None:
        self.epoch = object()
        self.listener: Callable[[str | None], Tell] = lambda _: nobody
        self.name: Callable[[Any], str] = metric_name

    def answered_by(self, listener: Callable[[str | None], Tell], *, name: Callable[[Any], str]) -> None:
        """Take a front door's answers: the handler of a group, and the name of a function's metrics."""
        self.listener, self.name = listener, name
        self.changed()

    def changed(self) -> None:
        """Make every profiled function ask again at its next call."""
        self.epoch = object()

    def __reduce__(self) -> str:
        """Return the name of the variable: each process has one audience."""
        return "audience"


def metric_name(fn: Any) -> str:
    """Return the name of a function's metrics: its qualified name, or ``<leaf module>.<function>`` if that has no dot.

    A partial has the name of its function, and another callable object ``<class>.__call__``.
    """
    named = fn
    while not hasattr(named, "__qualname__"):
        named = named.func if hasattr(named, "func") else type(named).__call__
    qualname: str = named.__qualname__
    module: str | None = getattr(named, "__module__", None)
    if "." in qualname or not module:
        return qualname
    return module.rpartition(".")[2] + "." + qualname


def error_type(error: BaseException) -> str:
    """Return the qualified name of the exception's class, without ``builtins`` (semantic conventions, error.type)."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


audience = Audience()


class Probe:
    """The record of one function's calls.

    Args:
        fn: the function, for its name.
        group: the metric group.
        heard_as: the group as handlers see it; None is the deprecated ``profile``'s.
        bare: name the metrics after the function alone, as the deprecated ``profile`` does.
    """

    __slots__ = (
        "_attributes",
        "_bare",
        "_calls",
        "_fn",
        "_heard_as",
        "epoch",
        "group",
        "name",
        "silent",
        "success",
        "tell",
    )

    def __init__(self, fn: Any, group: str, *, heard_as: str | None, bare: bool) -> None:
        self._fn = fn
        self._heard_as = heard_as
        self._bare = bare
        self.group = group
        self.epoch: object = None
        self.silent = False
        self.tell: Tell = nobody
        self.success: Callable[[float], None]

    def __reduce__(self) -> tuple[Callable[..., Probe], tuple[Any, ...]]:
        """Return how to make it again: its calls are those of a process."""
        return _probe_of, (self._fn, self.name, self.group, self._heard_as, self._bare)

    def ask(self) -> None:
        """Take over the current answers of :data:`audience`."""
        epoch = audience.epoch
        self.tell = audience.listener(self._heard_as)
        self.silent = self.tell is silence
        name = audience.name(self._fn)
        self.name = name.rpartition(".")[2] if self._bare else name
        self._attributes = {"code.function.name": self.name}
        self._calls: FunctionCalls = registry.default.group(self.group).function(self.name)
        self.success = self._calls.success.record
        self.epoch = epoch

    def begin(self) -> Call | None:
        """Return a call that begins now, or None where the group is silenced."""
        if self.epoch is not audience.epoch:
            self.ask()
        return None if self.silent else Call(self, tracer_for(self.group) if TRACE in sys.modules else None)

    def span(self, tracer: Any) -> Span:
        """Start a span for one call."""
        return Span(tracer, self.name, self._attributes)

    def told(self, outcome: str, seconds: float) -> None:
        """Give a handler the points of one call, as torchelastic does."""
        self.tell(f"{self.name}.{outcome}", 1)
        self.tell(f"{self.name}.duration.ms", int(seconds * 1000))

    def ended(self, seconds: float, error: BaseException | None, trace_id: int = 0) -> Distribution:
        """Record one call, and return the distribution that has its duration."""
        kept = self._calls.kept
        if error is None:
            into = self._calls.success
            if trace_id and seconds > kept.least:
                kept.traced(KeptCall(time.time_ns(), seconds, trace_id=trace_id))
        else:
            kind = error_type(error)
            into = self._calls.failure(kind)
            kept.failed(KeptCall(time.time_ns(), seconds, kind, message_of(error), trace_id))
        into.record(seconds)
        if self.tell is not nobody:
            self.told("success" if error is None else "failure", seconds)
        return into


def _probe_of(fn: Any, name: str, group: str, heard_as: str | None, bare: bool) -> Probe:
    probe = Probe(fn, group, heard_as=heard_as, bare=bare)
    probe.name = name
    return probe


class Call:
    """One call that is under way, with its span where tracing is on."""

    __slots__ = ("_probe", "_start", "span")

    def __init__(self, probe: Probe, tracer: Any) -> None:
        self._probe = probe
        self.span = None if tracer is None else probe.span(tracer)
        self._start = perf_counter()

    def end(self, error: BaseException | None = None) -> None:
        """Record the call; an early close (``GeneratorExit``) is no failure."""
        seconds = perf_counter() - self._start
        if isinstance(error, GeneratorExit):
            error = None
        into = self._probe.ended(seconds, error, 0 if self.span is None else self.span.trace_id)
        if self.span is not None:
            self.span.end(error, seconds, into)
