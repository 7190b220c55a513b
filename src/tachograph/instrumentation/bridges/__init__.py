"""Bridges: instrumentors of the libraries that training programs log with already.

A bridge waits for the import of its library (:class:`~tachograph.identity.import_hooks.ImportHook`), and patches the
names of it that are in the table of ``_libraries``. After a call of one of them has succeeded, the library's notes get
its arguments, and hand its values to ``_values``, which gives them their names and their x, and leaves out those that
came already: inside of another bridge's call (``_nesting``), or by another library. Nothing of ours enters a list, a
logger or a module of the job.

To add a library: its names in ``_libraries``, a module with its notes and its instrumentor, an entry point.

Its face: the instrumentors, and ``begin_bridges`` for zero code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tachograph.instrumentation.bridges._asked import asked_bridges
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import log


class _Waiting:
    """A finder that finds nothing: it instruments a library in the moment in which its import begins.

    Args:
        libraries: their names.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        self._waited = {root: library for library in libraries for root in LIBRARIES[library].roots}

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002 - as importlib calls it
        """Return None: the other finders know the module."""
        library = self._waited.pop(name, None)
        if library is not None:
            self._begin(library)
        return None

    def look(self) -> None:
        """Instrument the libraries that are there already."""
        for root in [root for root in self._waited if root in sys.modules]:
            self.find_spec(root)

    @staticmethod
    def _begin(library: str) -> None:
        try:
            instrumentor = instrumentor_of(library)()
            if not instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.instrument(skip_dep_check=True, chosen=True)
        except Exception as error:  # noqa: BLE001 - the border to the program's import
            pass_on(error)
            registry.default.count_error("instrumentation")
            log.warning("could not start recording values of %s: %r", library, error)


_waiting: list[_Waiting] = []


def begin_bridges(environ: Mapping[str, str]) -> None:
    """Instrument each library that TACHOGRAPH_BRIDGES asks for, by default all, once the program imports it.

    Args:
        environ: has the variable.
    """
    libraries = asked_bridges(environ, "all")
    if libraries and not _waiting:
        waiting = _Waiting(libraries)
        _waiting.append(waiting)
        sys.meta_path.insert(0, waiting)
        waiting.look()


def end_bridges() -> None:
    """Undo :func:`begin_bridges`: the libraries are restored."""
    while _waiting:
        sys.meta_path.remove(_waiting.pop())
    for library in LIBRARIES.values():
        if f"{__name__}.{library.home[0]}" in sys.modules:
            instrumentor = getattr(sys.modules[f"{__name__}.{library.home[0]}"], library.home[1])()
            if instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.uninstrument()


def instrumentor_of(library: str) -> Any:
    """Return the instrumentor's class of a library in the table."""
    module, name = LIBRARIES[library].home
    return getattr(import_module(f"{__name__}.{module}"), name)
