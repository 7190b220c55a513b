"""``task`` and ``workflow``: each call of the function is an execution of its own."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from contextvars import Token
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from tachograph.metric.execution import Execution, current
from tachograph.profiling.probe import Call, Probe, audience, metric_name
from tachograph.profiling.profiled import profiled
from tachograph.profiling.tracing import TRACE, Span, tracer_for
from tachograph.recording import registry
from tachograph.recording.accumulators import Distribution
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import LogOnce
from tachograph.recording.naming import check_name
from tachograph.recording.own_metrics import TASK_GROUP as GROUP
from tachograph.recording.wrapping import wraps

P = ParamSpec("P")
R = TypeVar("R")

_log_once = LogOnce()


class TaskDecorator(Protocol):
    """The decorator that ``@task()`` returns; it keeps the function's signature."""

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Return ``fn``, each call of which is an execution."""


class _Stretch(Span):
    """An execution, and its span where tracing is on: both are current only while the function's body runs."""

    __slots__ = ("_execution", "_inner", "_ours")

    def __init__(self, execution: Execution, inner: Span | None) -> None:
        self._execution = execution
        self._inner = inner
        self._ours: Token[Execution] | None = None

    def enter(self) -> None:
        self._ours = current.set(self._execution)
        if self._inner is not None:
            self._inner.enter()

    def leave(self) -> None:
        if self._inner is not None:
            self._inner.leave()
        if self._ours is not None:
            current.reset(self._ours)

    def end(self, error: BaseException | None, seconds: float, into: Distribution) -> None:
        try:
            self._execution.end()
        except Exception as failure:  # noqa: BLE001 - the one guard around it: the function's own result or error matters more
            pass_on(failure)
            registry.default.count_error("task")
            message = (
                "lost the last points of task %r (further warnings are suppressed; see tachograph_errors_total "
                "on /metrics)"
            )
            _log_once(("end", self._execution.name), message, self._execution.name, level=logging.ERROR, exc_info=True)
        if self._inner is not None:
            self._inner.end(error, seconds, into)


class _TaskProbe(Probe):
    """A probe that records the calls of one task, and makes an execution of each; no handler hears of them."""

    __slots__ = ("_title",)

    def __init__(self, fn: Any, title: str) -> None:
        super().__init__(fn, GROUP, heard_as=None, bare=False)
        self._title = title
        self.name = metric_name(fn)

    def __reduce__(self) -> tuple[type[_TaskProbe], tuple[Any, ...]]:
        return _TaskProbe, (self._fn, self._title)

    def ask(self) -> None:
        self._attributes = {"code.function.name": self.name}
        self._calls = registry.default.group(GROUP).function(self.name)
        self.success = self._calls.success.record
        self.epoch = audience.epoch

    def begin(self) -> Call:
        if self.epoch is not audience.epoch:
            self.ask()
        execution = Execution(self._title)
        execution.begin()
        run = Call(self, tracer_for(GROUP) if TRACE in sys.modules else None)
        run.span = _Stretch(execution, run.span)
        return run


def _executed(fn: Any, what: str, title: str | None) -> Any:
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(_executed(fn.__func__, what, title))
    if not callable(fn) or inspect.isclass(fn):
        raise TypeError(f"{what} decorates functions and methods, not {type(fn).__name__}: {fn!r:.100}")
    probe = _TaskProbe(fn, check_name(metric_name(fn) if title is None else title, f"the name of a {what}"))
    if not registry.default.enabled:
        return fn
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    called = fn if inspect.isroutine(fn) else getattr(fn, "func", type(fn).__call__)
    if any(kind(fn) or kind(called) for kind in kinds):
        return profiled(fn, probe)

    @wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        run: Any = probe.begin()
        run.span.enter()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            run.span.leave()
            run.end(error)
            raise
        run.span.leave()
        run.end()
        return result

    return function


def _decorated(fn: Any, what: str, name: str | None, ignored: dict[str, Any]) -> Any:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a {what} must be a string, not {type(name).__name__}: {name!r:.100}")
    if ignored:
        _log_once(
            what,
            "%s: ignoring %s: the function runs in this process, without scheduling, caching or retries",
            what,
            ", ".join(ignored),
        )
    if fn is None:
        return lambda found: _executed(found, what, name)
    return _executed(fn, what, name)


@overload
def task(fn: None = None, *, name: str | None = None, **orchestration: Any) -> TaskDecorator: ...
@overload
def task(fn: Callable[P, R], *, name: str | None = None, **orchestration: Any) -> Callable[P, R]: ...
def task(fn: Any = None, *, name: str | None = None, **orchestration: Any) -> Any:
    """Make each call of a function an execution: ``@task``, ``@task()`` or ``@task(name=…)``.

    The function runs in place and its result is returned. During the call, x counts from the beginning of the call, and
    metric definitions belong to the call; tasks that it calls have their own. For coroutines, generators and async
    generators an execution covers the whole run. Each call is also measured as with ``@prof``, in the group
    ``tachograph.task``, and becomes a span if the program traces. A thread that the function starts records for the
    process unless it runs in a copy of the function's context; an asyncio task that outlives the call does as well.

    Args:
        fn: the function or method.
        name: the name of the executions; by default that of the function.
        **orchestration: options of other systems for retries, caching and the like; ignored with one warning.

    Raises:
        TypeError: ``fn`` is not a function or method, or the name is not a string.
    """
    return _decorated(fn, "task", name, orchestration)


@overload
def workflow(fn: None = None, *, name: str | None = None, **orchestration: Any) -> TaskDecorator: ...
@overload
def workflow(fn: Callable[P, R], *, name: str | None = None, **orchestration: Any) -> Callable[P, R]: ...
def workflow(fn: Any = None, *, name: str | None = None, **orchestration: Any) -> Any:
    """Make each call of a function an execution, like :func:`task`; tasks that it calls are executions of their own."""
    return _decorated(fn, "workflow", name, orchestration)
