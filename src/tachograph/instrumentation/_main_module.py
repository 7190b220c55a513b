"""The script itself: its functions come into being while it runs, and no import tells of them.

So the interpreter's tracing calls us before each of its top-level statements, until the last one that defines a
function or class which a pattern may name; without such a pattern nothing is traced. No other frame is traced.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on

MAIN_NAMES = ("__main__", "__mp_main__")
"""How a script's module is called, in the process that runs it, and in those that multiprocessing has spawned."""

_BODY = "<module>"
_SPAWNED = "--multiprocessing-fork"
_WORK = "_bootstrap"  # BaseProcess._bootstrap: a spawned process has loaded the script, and begins with its work

_log = logging.getLogger("tachograph")


class MainModule:
    """Calls back while the script's top level runs: before the next statement after each definition.

    If the script runs already, its definitions are passed on at once. If a debugger or a coverage tool traces the
    process, the script's functions cannot be found: this is logged once.

    Args:
        asked: tells whether a pattern may name the definition of a code object; it gets the module's names, too.
        defined: gets the module's namespace and names; called in the script's thread.
    """

    def __init__(
        self,
        asked: Callable[[CodeType, Sequence[str]], bool],
        defined: Callable[[MutableMapping[str, Any], Sequence[str]], object],
    ) -> None:
        self._asked = asked
        self._defined = defined
        self._names: tuple[str, ...] = ()
        self._defining: set[int] = set()
        self._last = 0
        self._before = 0
        self._frame: FrameType | None = None
        self._spawned = is_spawned()
        # One object each: whether the interpreter still calls them is asked by identity.
        self._calls = self._entered
        self._statements = self._reached
        body = _running_body()
        if body is not None:
            self._names = _names(body)
            self._tell(body.f_globals)
            self._begin(body)
        elif threading.current_thread() is threading.main_thread():
            self._trace()

    def _trace(self) -> bool:
        if sys.gettrace() is not None:
            _log.warning("--prof: not profiling the script's own functions because a debugger or coverage traces it")
            return False
        sys.settrace(self._calls)
        return True

    def _entered(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        if code.co_name == _BODY and frame.f_globals.get("__name__") in MAIN_NAMES and self._frame is None:
            return self._begin(frame)
        if self._spawned and code.co_name == _WORK:
            self.close()
        return None

    def _begin(self, frame: FrameType) -> Any:
        """Look at the script's code: trace its statements where one of its definitions may be meant."""
        self._names = _names(frame)
        for code in _definitions(frame.f_code):
            if self._asked(code, self._names):
                self._defining.update(range(code.co_firstlineno, max(_lines(code)) + 1))
        self._last = max(self._defining, default=0)
        if not self._defining or self._last < (frame.f_lineno or 0):
            self._tell(frame.f_globals)
            if not self._spawned or frame.f_globals.get("__name__") == MAIN_NAMES[1]:
                self._leave()
            return None
        if sys.gettrace() is not self._calls and not self._trace():
            return None
        self._frame = frame
        frame.f_trace = self._statements
        return self._statements

    def _reached(self, frame: FrameType, event: str, _arg: object) -> Any:
        """Pass on the definitions of the statements before this one."""
        before, self._before = self._before, frame.f_lineno or 0
        ends = event == "return" or self._before > self._last
        if ends or before in self._defining:
            self._tell(frame.f_globals)
        if ends:
            self.close()
            return None
        return self._statements

    def _tell(self, namespace: MutableMapping[str, Any]) -> None:
        try:
            self._defined(namespace, self._names)
        except Exception as error:  # noqa: BLE001 - the border to the script: counted and said
            pass_on(error)
            registry.default.count_error("instrumentation")
            _log.exception("could not profile the script's functions")
            self.close()

    def close(self) -> None:
        """End the tracing."""
        frame, self._frame = self._frame, None
        if frame is not None:
            frame.f_trace = None
        self._leave()

    def _leave(self) -> None:
        if sys.gettrace() is self._calls:
            sys.settrace(None)


def is_spawned() -> bool:
    """Tell whether multiprocessing has spawned the process: it loads the script as a module of another name."""
    return _SPAWNED in sys.orig_argv


def _running_body() -> FrameType | None:
    """Return the frame of the script's top level where we are called from it."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == _BODY and frame.f_globals.get("__name__") in MAIN_NAMES:
            return frame
        frame = frame.f_back
    return None


def _names(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the script's module: ``__main__``, its file without the ending, and its name for ``-m``."""
    found = [MAIN_NAMES[0]]
    file = frame.f_code.co_filename
    if not file.startswith("<"):
        found.append(PurePath(file).stem)
    spec = frame.f_globals.get("__spec__")
    if spec is not None:
        found.append(str(spec.name).removesuffix(".__main__"))
    return tuple(dict.fromkeys(found))


def _definitions(body: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions and classes in a body; lambdas and comprehensions have no name."""
    for code in body.co_consts:
        if isinstance(code, CodeType):
            if not code.co_name.startswith("<"):
                yield code
            elif code.co_name.startswith("<generic"):  # PEP 695: `def f[T]()` is made in a scope of its own
                yield from _definitions(code)


def _lines(code: CodeType) -> Iterator[int]:
    """Yield the lines of a definition, with those of the definitions in it."""
    yield code.co_firstlineno
    yield from (line for _, _, line in code.co_lines() if line is not None)
    for inner in _definitions(code):
        yield from _lines(inner)
