"""Patches: functions of other libraries that note their calls; after them nothing of a patch is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

from tachograph.identity.import_hooks import ImportHook
from tachograph.instrumentation.bridges._libraries import Library, PatchedName
from tachograph.instrumentation.bridges._nesting import Brought, OutermostCall, calls, under_way
from tachograph.recording.interrupts import pass_on
from tachograph.recording.log import log
from tachograph.recording.wrapping import wraps

Failed = Callable[[Exception], object]
Note = Callable[..., object]
Brings = Callable[..., Brought]


class Bridged(Protocol):
    """The state of a bridge, as its patches see it: those that another patch has wrapped outlive it."""

    on: bool


class Patches:
    """The patches of one library: each is made right after the import of its module.

    The note of a call gets its arguments, once the original has succeeded. An exception of a note goes to ``failed``,
    and the caller never sees it.

    Args:
        library: whose names.
        notes: has the methods that the library's names are noted by.
        failed: called with an exception of ours.
    """

    def __init__(self, library: Library, notes: object, failed: Failed) -> None:
        self.on = True
        self._library, self._notes, self._failed = library, notes, failed
        self._made: list[tuple[Any, str, Any, bool]] = []
        modules = dict.fromkeys(name.module for name in library.names)
        self._hooks = [ImportHook(module, self._patch) for module in modules]

    def _patch(self, module: ModuleType) -> None:
        missing = []
        for name in self._library.names:
            if name.module != module.__name__:
                continue
            path, _, attribute = name.path.rpartition(".")
            owner = getattr(module, path, None) if path else module
            if owner is not None and callable(getattr(owner, attribute, None)):
                self._wrap(owner, attribute, name)
            elif not name.optional:
                missing.append(name.path)
        if missing:
            tried = f"{self._library.package} {self._library.oldest} to {self._library.newest}"
            message = "%s has no %s: values passed to it are not recorded (tested with %s)"
            log.warning(message, module.__name__, " and no ".join(missing), tried)

    def _wrap(self, owner: Any, attribute: str, name: PatchedName) -> None:
        own = attribute in vars(owner)
        original = getattr(owner, attribute)
        note = getattr(self._notes, name.note)
        if name.makes:
            made = note(original, self, self._failed)
        elif name.brings:
            made = self._outermost(original, note, getattr(self._notes, name.brings))
        else:
            made = _noting(original, note, self, self._failed)
        if name.unseen:
            made.__code__ = made.__code__.replace(co_filename=original.__code__.co_filename)
        setattr(owner, attribute, made)
        self._made.append((owner, attribute, original if own else None, made))

    def _outermost(self, original: Any, note: Note, brings: Brings) -> Any:
        noting = _noting(original, note, self, self._failed)

        @wraps(original)
        def declaring(*args: Any, **kwargs: Any) -> Any:
            if not self.on or calls.outermost is not None:
                return noting(*args, **kwargs)
            try:
                brought = brings(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the border to the objects of the program
                pass_on(error)
                self._failed(error)
                return noting(*args, **kwargs)
            if not brought:
                return noting(*args, **kwargs)
            calls.outermost = call = OutermostCall(brought)
            under_way.add(call)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                calls.outermost = None
                self._noted(call.failed, (), {})
                raise
            finally:
                calls.outermost = None
                under_way.discard(call)
            self._noted(note, args, kwargs)
            return result

        return declaring

    def _noted(self, note: Note, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            note(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as above
            pass_on(error)
            self._failed(error)

    def close(self) -> None:
        """Restore the library. A name that another one has patched since keeps its patch, and ours notes nothing."""
        self.on = False
        for hook in self._hooks:
            hook.cancel()
        for owner, attribute, original, made in reversed(self._made):
            if vars(owner).get(attribute) is not made:
                continue
            if original is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)
        self._made = []


def _noting(original: Any, note: Note, bridge: Bridged, failed: Failed) -> Any:
    @wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if bridge.on:
            try:
                note(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the border to the objects of the program
                pass_on(error)
                failed(error)
        return result

    return noting
