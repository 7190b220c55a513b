"""However a generator or async generator is driven, a profiled one answers as the bare one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from front_door import unconfigured  # noqa: F401 - a fixture
from tachograph import prof
from tracing_on import tracing


class Refused(Exception):  # noqa: N818 - thrown into runs on purpose
    """Is caught by the body."""


def body(steps: int) -> Generator[Any, Any, Any]:
    """Yield what comes in; take Refused for an answer; may end with a value, an error, or by catching an exit."""
    said: Any = None
    for step in range(steps):
        try:
            said = yield step, said
        except Refused:
            said = "refused"
        except GeneratorExit:
            if steps == 4:
                raise ValueError("on closing") from None
            return "closed"
    if steps == 3:
        raise ZeroDivisionError
    return said


async def async_body(steps: int) -> AsyncGenerator[Any, Any]:
    """Do the same, asynchronously."""
    said: Any = None
    for step in range(steps):
        try:
            await asyncio.sleep(0)
            said = yield step, said
        except Refused:
            said = "refused"
        except GeneratorExit:
            await asyncio.sleep(0)
            if steps == 4:
                raise ValueError("on closing") from None
            return
    if steps == 3:
        raise ZeroDivisionError


ACTIONS = st.lists(st.sampled_from(["next", "send", "throw", "refuse", "close", "exit"]), max_size=7)
RAISED = (StopIteration, StopAsyncIteration, ZeroDivisionError, ValueError, KeyError, Refused, TypeError, GeneratorExit)


def act(run: Generator[Any, Any, Any], action: str) -> Any:
    """Do one thing to a generator."""
    steps: dict[str, Callable[[], Any]] = {
        "next": lambda: next(run),
        "send": lambda: run.send("sent"),
        "throw": lambda: run.throw(KeyError("thrown")),
        "refuse": lambda: run.throw(Refused()),
        "exit": lambda: None,  # yield from turns it into close()
        "close": lambda: run.close() and None,
    }
    try:
        return steps[action]()
    except RAISED as error:
        return type(error), getattr(error, "value", None)


async def async_act(run: AsyncGenerator[Any, Any], action: str) -> Any:
    """Do one thing to an async generator."""
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "next": lambda: anext(run),
        "send": lambda: run.asend("sent"),
        "throw": lambda: run.athrow(KeyError("thrown")),
        "refuse": lambda: run.athrow(Refused()),
        "exit": lambda: run.athrow(GeneratorExit()),
        "close": run.aclose,
    }
    try:
        return await steps[action]()
    except RAISED as error:
        return type(error)


@given(actions=ACTIONS, steps=st.integers(0, 4), traced=st.booleans())
def test_any_use_of_a_generator_is_forwarded(actions: list[str], steps: int, traced: bool) -> None:
    """However a generator is driven, a profiled one answers as the bare one does."""
    with tracing(traced):
        bare, profiled = body(steps), prof(body)(steps)
        for action in [*actions, "close"]:
            assert act(profiled, action) == act(bare, action)


@given(actions=ACTIONS, steps=st.integers(0, 4), traced=st.booleans())
def test_any_use_of_an_async_generator_is_forwarded(actions: list[str], steps: int, traced: bool) -> None:
    """However an async generator is driven, a profiled one answers as the bare one does."""

    async def main() -> None:
        bare, profiled = async_body(steps), prof(async_body)(steps)
        for action in [*actions, "close"]:
            assert await async_act(profiled, action) == await async_act(bare, action)

    with tracing(traced):
        asyncio.run(main())
