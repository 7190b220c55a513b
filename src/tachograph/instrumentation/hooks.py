"""Post-import hooks: wait for a module that the program imports later, or never, without importing it ourselves."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tachograph import registry

_log = logging.getLogger("tachograph")

Callback = Callable[[ModuleType], object]


class ImportHook(MetaPathFinder):
    """Calls back once with a module, right after it was imported; at once where it has been already.

    What the callback raises is counted and said: it breaks no import.

    Args:
        name: the module's full name.
        callback: called in the thread that imports it, before any other code gets the module from us or from Python.
    """

    def __init__(self, name: str, callback: Callback) -> None:
        self._name = name
        self._callback: Callback | None = callback
        self._lock = threading.Lock()
        sys.meta_path.insert(0, self)
        found = sys.modules.get(name)
        if found is None:
            return
        if getattr(found.__spec__, "_initializing", False):  # another thread is at it: wait for its end
            found = import_module(name)
        self.imported(found)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders know of the module, with a loader that tells us; None for any other module."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _TellingLoader(spec.loader, self.imported)
                return spec
        return None

    def imported(self, module: ModuleType) -> None:
        """Call back, unless that was done or cancelled."""
        with self._lock:
            callback, self._callback = self._callback, None
        self._leave()
        if callback is None:
            return
        try:
            callback(module)
        except Exception:  # noqa: BLE001 - the border to the program's import: counted and said
            registry.default.count_error("instrumentation")
            _log.exception("%s could not be instrumented", self._name)

    def cancel(self) -> None:
        """Call back no more."""
        with self._lock:
            self._callback = None
        self._leave()

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _TellingLoader(Loader):
    """Loads as the module's own loader does, and tells when it has; the module keeps no trace of it."""

    def __init__(self, loader: Loader, tell: Callback) -> None:
        self._loader = loader
        self._tell = tell

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._tell(module)
