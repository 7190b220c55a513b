"""@prof on coroutines, generators and async generators: measured over their whole run, and otherwise unchanged."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import time
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from front_door import Kept, calls, fresh_group, recorded, unconfigured  # noqa: F401 - two are fixtures
from tachograph import elastic, prof
from tracing_on import tracing


@pytest.fixture(params=["untraced", "traced", "silenced"], autouse=True)
def way(request: pytest.FixtureRequest, group: str) -> Iterator[str]:
    """Run each test without tracing, with it, and in a silenced group."""
    if request.param == "silenced":
        elastic.configure(elastic.NullMetricHandler(), group)
    with tracing(request.param == "traced"):
        yield request.param


def seconds(group: str) -> float:
    """Return the seconds of all calls together."""
    return sum(value[1] for key, value in recorded(group).items() if key.startswith("function.duration"))


def expect(way: str, group: str, fn: Callable[..., Any], **outcomes: int) -> None:
    """Check the calls that were counted: none in a silenced group."""
    wanted = {f"{elastic._get_metric_name(fn)} {outcome}": count for outcome, count in outcomes.items()}
    assert calls(group) == ({} if way == "silenced" else wanted)


def test_coroutines(way: str, group: str) -> None:
    """A coroutine function stays one, and is measured until it returns, raises, or is cancelled."""

    @prof(group=group)
    async def fetch(delay: float, error: type[Exception] | None = None) -> str:
        await asyncio.sleep(delay)
        if error:
            raise error
        return "got"

    async def main() -> None:
        assert await fetch(0.03) == "got"
        with pytest.raises(KeyError):
            await fetch(0, KeyError)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(fetch(10), 0.01)

    assert inspect.iscoroutinefunction(fetch)
    asyncio.run(main())
    expect(way, group, fetch, success=1, KeyError=1, **{"asyncio.exceptions.CancelledError": 1})
    assert way == "silenced" or 0.03 < seconds(group) < 5


def test_coroutines_that_are_never_finished(way: str, group: str) -> None:
    """A coroutine that is closed before its end has not failed."""

    @prof(group=group)
    async def fetch() -> None:
        await asyncio.sleep(10)

    @types.coroutine
    def suspend() -> Generator[None, None, None]:
        yield

    @prof(group=group)
    async def waiting() -> None:
        await suspend()

    never_started = fetch()
    never_started.close()
    started = waiting()
    started.send(None)
    started.close()
    expect(way, group, waiting, success=1)


def test_other_awaitables(way: str, group: str) -> None:
    """What inspect takes for a coroutine function may return any awaitable."""

    class Later:
        def __await__(self) -> Generator[Any, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 4

    class Asks:
        async def __call__(self) -> int:
            return 5

    marked = getattr(inspect, "markcoroutinefunction", None)
    if marked is not None:

        def later() -> Awaitable[int]:
            return Later()

        assert asyncio.run(prof(marked(later), group)()) == 4
        expect(way, group, later, success=1)
    other = group + "asks"
    asked = prof(Asks(), other)
    assert inspect.iscoroutinefunction(asked)
    assert asyncio.run(asked()) == 5
    assert asyncio.run(prof(functools.partial(Asks()), other)()) == 5
    assert list(calls(other).values()) == [2]


def test_generators(way: str, group: str) -> None:
    """A generator function stays one, and is measured from its first step to its end."""

    @prof(group=group)
    def count(upto: int) -> Generator[int, str, str]:
        """Count."""
        said = ""
        for value in range(upto):
            time.sleep(0.005)
            said += yield value
        return said

    run = count(3)
    assert inspect.isgeneratorfunction(count)
    assert inspect.isgenerator(run)
    assert [next(run), run.send("a"), run.send("b")] == [0, 1, 2]
    with pytest.raises(StopIteration) as stop:
        run.send("c")
    assert stop.value.value == "abc"
    expect(way, group, count, success=1)
    assert way == "silenced" or 0.015 <= seconds(group) < 5


def test_generators_that_are_closed_early(way: str, group: str) -> None:
    """A generator that is closed, or dropped, before its end has not failed; one that was never begun was no call."""
    closed = []

    @prof(group=group)
    def count() -> Generator[int, None, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(1)

    run = count()
    next(run)
    run.close()
    dropped = count()
    next(dropped)
    del dropped
    gc.collect()
    count().close()
    assert closed == [1, 1]
    expect(way, group, count, success=2)


def test_wrong_arguments_are_failures(way: str, group: str) -> None:
    """Calling with arguments that do not fit is the TypeError it was, at the first step."""

    @prof(group=group)
    def count(upto: int) -> Generator[int, None, None]:
        yield upto

    @prof(group=group)
    async def stream(upto: int) -> AsyncGenerator[int, None]:
        yield upto

    with pytest.raises(TypeError, match="upto"):
        next(count())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="upto"):
        asyncio.run(anext(stream()))  # type: ignore[call-arg, arg-type]
    assert sum(calls(group).values()) == (0 if way == "silenced" else 2)


def test_generator_based_coroutines(way: str, group: str) -> None:
    """A types.coroutine can still be awaited."""

    @prof(group=group)
    @types.coroutine
    def pause() -> Generator[Any, None, int]:
        yield from asyncio.sleep(0).__await__()
        return 3

    async def main() -> int:
        return await pause()

    assert asyncio.run(main()) == 3
    expect(way, group, pause, success=1)


async def streaming(steps: int) -> AsyncGenerator[int, None]:
    """Count, and fail where there are three steps."""
    for step in range(steps):
        await asyncio.sleep(0)
        yield step
    if steps == 3:
        raise ZeroDivisionError


def test_async_generators(way: str, group: str) -> None:
    """An async generator function stays one, and is measured over its whole run, an early close included."""
    profiled = prof(streaming, group)

    async def main() -> None:
        assert [value async for value in profiled(2)] == [0, 1]
        async with aclosing(profiled(2)) as run:
            async for _ in run:
                break
        with pytest.raises(ZeroDivisionError):
            _ = [value async for value in profiled(3)]
        left_to_the_loop.append(profiled(2))
        await anext(left_to_the_loop[0])

    left_to_the_loop: list[AsyncGenerator[Any, Any]] = []
    assert inspect.isasyncgenfunction(profiled)
    asyncio.run(main())
    gc.collect()
    expect(way, group, streaming, success=3, ZeroDivisionError=1)


def test_context_variables_are_kept(group: str) -> None:
    """What a coroutine or a generator sets in its context is seen by its caller, as without @prof."""
    variable = contextvars.ContextVar("variable", default="unset")

    @prof(group=group)
    async def setting() -> None:
        await asyncio.sleep(0)
        variable.set("set")

    @prof(group=group)
    def stepping() -> Generator[None, None, None]:
        variable.set("stepped")
        yield

    async def main() -> tuple[str, str]:
        await setting()
        first = variable.get()
        next(stepping())
        return first, variable.get()

    assert asyncio.run(main()) == ("set", "stepped")


def test_handlers_hear_of_runs(group: str) -> None:
    """A handler gets a generator's points once it has ended."""
    kept = Kept()
    elastic.configure(kept, group)

    @prof(group=group)
    def count() -> Generator[int, None, None]:
        yield 1

    run = count()
    next(run)
    assert not kept.points
    assert next(run, "end") == "end"
    name = count.__qualname__
    assert [point.name for point in kept.points] == [f"{name}.success", f"{name}.duration.ms"]
