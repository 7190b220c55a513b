"""Post-import hooks: wait for a module that the program imports later, or never, without importing it ourselves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from tachograph.recording.wrapping import hide_frame

if TYPE_CHECKING:  # loading it takes 10 ms, and its classes do nothing
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

Callback = Callable[[ModuleType], object]


class ImportHook:
    """Calls back once with a module, right after its import; at once where it is imported already.

    Exceptions of the callback are counted and logged: they break no import.

    Args:
        name: the module's full name.
        callback: called in the importing thread, before any other code gets the module.
    """

    def __init__(self, name: str, callback: Callback) -> None:
        self._name = name
        self._callback: Callback | None = callback
        self._lock = threading.Lock()
        sys.meta_path.insert(0, self)
        found = sys.modules.get(name)
        if found is None:
            return
        if _initializing(found):  # another thread imports it: wait for its end
            found = import_module(name)
        self.imported(found)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of the module, with a loader that reports to us; None for any other module."""
        return _found(self, fullname, path, target, self.imported) if fullname == self._name else None

    def imported(self, module: ModuleType) -> None:
        """Call back, unless this was done or cancelled."""
        with self._lock:
            callback, self._callback = self._callback, None
        self._leave()
        if callback is None:
            return
        _call(callback, module)

    def cancel(self) -> None:
        """End the wait: nothing is called any more."""
        with self._lock:
            self._callback = None
        self._leave()

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class ImportWatch:
    """Calls back with every wanted module, right after its import; at once with those that are imported already.

    The callback gets a module again when it is imported again (``importlib.reload``). Exceptions of the callback are
    counted and logged: they break no import.

    Args:
        asked: tells whether a module is wanted, by its full name.
        callback: called in the thread that imports the module.
    """

    def __init__(self, asked: Callable[[str], bool], callback: Callback) -> None:
        self._asked = asked
        self._callback = callback
        self._closed = False
        sys.meta_path.insert(0, self)
        for name, found in list(sys.modules.items()):
            if asked(name) and isinstance(found, ModuleType) and not _initializing(found):
                self.imported(found)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of a wanted module, with a loader that reports to us; None for others."""
        return _found(self, fullname, path, target, self.imported) if self._asked(fullname) else None

    def imported(self, module: ModuleType) -> None:
        """Call back, unless it was closed."""
        if not self._closed:
            _call(self._callback, module)

    def close(self) -> None:
        """End the wait: nothing is called any more."""
        self._closed = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _call(callback: Callback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:  # noqa: BLE001 - the border to the program's import: counted and said
        # Imported here: `import tachograph` makes a hook, and loads none of these.
        from tachograph.recording import registry
        from tachograph.recording.interrupts import pass_on
        from tachograph.recording.log import log

        pass_on(error)
        registry.default.count_error("instrumentation")
        log.exception("could not instrument %s", module.__name__)


def _found(
    hook: ImportHook | ImportWatch, fullname: str, path: Sequence[str] | None, target: ModuleType | None, tell: Callback
) -> ModuleSpec | None:
    """Return the spec of the finders behind the hook: those before it were asked, and hooks never ask each other."""
    finders = list(sys.meta_path)
    if hook not in finders:
        return None
    for finder in finders[finders.index(hook) + 1 :]:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
        if spec is not None:
            if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = cast("Loader", _TellingLoader(spec.loader, tell))
            return spec
    return None


class _TellingLoader:
    """Loads as the module's own loader does, and reports the end; the module keeps no trace of it."""

    def __init__(self, loader: Loader, tell: Callback) -> None:
        self._loader = loader
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # `python -m` asks for the code, inspect for the source

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    @hide_frame
    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._tell(module)
