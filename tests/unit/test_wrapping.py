"""Wrappers of ours: a warning or a log record of a wrapped function names the line that it names without us."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tachograph
from places import PACKAGE
from tachograph.instrumentation.bridges._libraries import Library, PatchedName
from tachograph.instrumentation.bridges._patches import Patches
from tracing_on import Spans, program_that_traces  # noqa: F401 - one is a fixture


def plain() -> None:
    """Warn about the caller."""
    warnings.warn("about the caller", stacklevel=2)


def generator() -> Iterator[int]:
    """Warn about the caller."""
    warnings.warn("about the caller", stacklevel=2)
    yield 1


async def coroutine() -> None:
    """Warn about the caller."""
    warnings.warn("about the caller", stacklevel=2)


async def async_generator() -> AsyncIterator[int]:
    """Warn about the caller."""
    warnings.warn("about the caller", stacklevel=2)
    yield 1


async def iterate(wrapped: Callable[[], AsyncIterator[int]]) -> None:
    """Iterate to the end."""
    async for _ in wrapped():
        pass


async def wait_for(wrapped: Callable[[], Any]) -> None:
    """Await the result."""
    await wrapped()


CALLS: list[tuple[Any, Callable[[Any], object]]] = [
    (plain, lambda wrapped: wrapped()),
    (generator, lambda wrapped: list(wrapped())),
    (coroutine, lambda wrapped: asyncio.run(wait_for(wrapped))),
    (async_generator, lambda wrapped: asyncio.run(iterate(wrapped))),
]


def place_of(call: Callable[[Any], object], function: Any) -> tuple[str, int]:
    """Return the file and the line that the warning of a call names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(function)
    (found,) = caught
    return found.filename, found.lineno


@pytest.mark.parametrize("wrap", [tachograph.prof, tachograph.task])
@pytest.mark.parametrize(("function", "call"), CALLS)
def test_a_warning_names_the_caller_of_a_profiled_function(
    wrap: Callable[[Any], Any], function: Any, call: Callable[[Any], object]
) -> None:
    """``stacklevel=2`` in a profiled function or a task is the line that calls it, of each kind of function."""
    assert place_of(call, wrap(function)) == place_of(call, function)


@pytest.mark.parametrize(("function", "call"), CALLS)
def test_a_warning_names_the_caller_where_the_program_traces(
    function: Any, call: Callable[[Any], object], spans: Spans
) -> None:
    """A span around the call does not change it."""
    assert place_of(call, tachograph.prof(function)) == place_of(call, function)
    assert spans.all()


def test_a_log_record_names_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """``stacklevel=2`` of logging is the line that calls the profiled function, too."""

    def logs() -> None:
        logging.getLogger("wrapped").warning("about the caller", stacklevel=2)

    def call(wrapped: Callable[[], None]) -> None:
        wrapped()

    call(logs)
    call(tachograph.prof(logs))
    bare, wrapped = caplog.records
    assert (wrapped.pathname, wrapped.lineno, wrapped.funcName) == (bare.pathname, bare.lineno, bare.funcName)


def test_a_warning_of_a_bridged_library_names_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that a bridge patches warns about the line of the program, and so does a module that it waits for."""
    lines = "import warnings", "def log(value): warnings.warn('deprecated', stacklevel=2)"
    (tmp_path / "a_library_that_warns.py").write_text("\n".join([*lines, "warnings.warn('module', stacklevel=2)"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    noted: list[object] = []

    class Notes:
        def note(self, value: object) -> None:
            noted.append(value)

    name = PatchedName("a_library_that_warns", "log", "note")
    library = Library("a_library_that_warns", "0", "1", ("", ""), (), (name,))
    patches = Patches(library, Notes(), lambda error: pytest.fail(str(error)))
    monkeypatch.delitem(sys.modules, "a_library_that_warns", raising=False)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import a_library_that_warns  # type: ignore[import-not-found]

            a_library_that_warns.log(1)
    finally:
        patches.close()
        sys.modules.pop("a_library_that_warns", None)
    assert noted == [1]
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * 2


def test_every_wrapper_is_hidden() -> None:
    """No module of the package uses ``functools.wraps`` itself."""
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"functools import .*\bwraps|functools\.wraps", path.read_text(encoding="utf-8"))
    ]
    assert found == ["recording/wrapping.py"]
