"""Functions in place of profiled ones, each of the same kind as the original."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from time import perf_counter
from typing import Any

from tachograph.profiling.probe import Call, Probe, audience, nobody
from tachograph.profiling.tracing import TRACE, Span, tracer_for
from tachograph.recording.wrapping import hide_frame, wraps

Function = Callable[..., Any]

MARK = "__tachograph_profiled__"


def profiled(fn: Function, probe: Probe) -> Function:
    """Return a function of the same kind, name and signature as ``fn`` whose calls ``probe`` records."""
    called: Any = fn
    while isinstance(called, partial):
        called = called.func
    if not inspect.isroutine(called):
        called = type(called).__call__
    made = next((make for applies, make in _KINDS if applies(fn) or applies(called)), _function)(fn, probe)
    made.__name__ = getattr(fn, "__name__", probe.name.rpartition(".")[2])
    made.__qualname__ = getattr(fn, "__qualname__", probe.name)
    setattr(made, MARK, True)
    return made


# cloudpickle writes a function of the program's main module by value, and the function around it as well: its variables
# are the function and its probe, and the globals that it reads are found by name.
def _function(fn: Function, probe: Probe) -> Function:
    @wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        if probe.epoch is not audience.epoch:
            probe.ask()
        if probe.silent:
            return fn(*args, **kwargs)
        if TRACE in sys.modules:
            tracer = tracer_for(probe.group)
            if tracer is not None:
                return _in_span(Call(probe, tracer), fn, args, kwargs)
        start = perf_counter()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            seconds = perf_counter() - start
            probe.ended(seconds, None if isinstance(error, GeneratorExit) else error)
            raise
        seconds = perf_counter() - start
        probe.success(seconds)
        if probe.tell is not nobody:
            probe.told("success", seconds)
        return result

    return function


@hide_frame
def _in_span(run: Call, fn: Function, args: Any, kwargs: Any) -> Any:
    span: Any = run.span
    span.enter()
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        span.leave()
        run.end(error)
        raise
    span.leave()
    run.end()
    return result


def _generator(fn: Function, probe: Probe) -> Function:
    @wraps(fn)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        run = probe.begin()
        if run is None:
            return (yield from fn(*args, **kwargs))
        try:
            body = fn(*args, **kwargs)
            result = yield from (body if run.span is None else _steps(body, run.span))
        except BaseException as error:
            run.end(error)
            raise
        run.end()
        return result

    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        types.coroutine(generator)  # marks it in place, so that it can be awaited
    return generator


def _coroutine(fn: Function, probe: Probe) -> Function:
    @wraps(fn)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        run = probe.begin()
        if run is None:
            return await fn(*args, **kwargs)
        try:
            body = fn(*args, **kwargs)
            result = await (body if run.span is None else _awaited_steps(body, run.span))
        except BaseException as error:
            run.end(error)
            raise
        run.end()
        return result

    return coroutine


def _async_generator(fn: Function, probe: Probe) -> Function:
    @wraps(fn)
    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        run = probe.begin()
        span = None if run is None else run.span
        try:
            body = fn(*args, **kwargs)
            step = _begun(body)
            while True:
                value = await (step if span is None else _awaited_steps(step, span))
                try:
                    sent = yield value
                except BaseException as error:  # noqa: BLE001 - it belongs to the body
                    step = body.athrow(error)
                else:
                    step = body.asend(sent)
        except StopAsyncIteration:
            if run is not None:
                run.end()
        except BaseException as error:
            if run is not None:
                run.end(error)
            raise

    return async_generator


def _begun(body: AsyncGenerator[Any, Any]) -> Any:
    """Return an async generator's first step, taken without the event loop's hooks.

    The loop closes all generators that it knows at once when it shuts down: it shall know the profiled one alone.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return body.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)


@hide_frame
def _steps(body: Any, span: Span) -> Generator[Any, Any, Any]:
    """Drive a generator or coroutine as its caller drives this one, its span being current only while it runs."""
    step: Callable[[], Any] = partial(body.send, None)
    while True:
        span.enter()
        try:
            value = step()
        except StopIteration as stop:
            return stop.value
        finally:
            span.leave()
        try:
            sent = yield value
        except BaseException as error:  # noqa: BLE001 - it belongs to the body
            step = partial(body.throw, error)
        else:
            step = partial(body.send, sent)


_drive = types.coroutine(_steps)


def _awaited_steps(body: Any, span: Span) -> Any:
    """Return the awaitable in place of ``body``."""
    return _drive(body if hasattr(body, "send") else _awaiting(body), span)


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Function, Probe], Function]], ...] = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
)
