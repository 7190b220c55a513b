"""The process group of ``torch.distributed`` that this process has joined: it tells the rank under any launcher.

``mp.spawn``, a fork, Lightning and others give a process its rank by ``init_process_group(rank=…)`` alone. That is
wrapped as soon as the program has imported torch, which is never imported here; a group that was joined by another
reference to the function is found by looking.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from tachograph.identity.import_hooks import ImportHook
from tachograph.recording import registry
from tachograph.recording.forking import at_fork
from tachograph.recording.wrapping import wraps

MODULE = "torch.distributed.distributed_c10d"
_PACKAGE = "torch.distributed"  # has the function, too, where it was imported before

_log = logging.getLogger("tachograph")


class Membership(NamedTuple):
    """The place of this process in its default process group."""

    rank: int
    world_size: int


class GroupWatch:
    """The watch for the default process group of this process.

    Attributes:
        on_join: called in the thread that joins, right after it, one after the other; an exception is counted and
            logged, and goes no farther.
    """

    def __init__(self) -> None:
        self.on_join: list[Callable[[], object]] = []
        self._hook: ImportHook | None = None
        self._joined: Membership | None = None
        self._known = 0  # the id of the group that was looked at last, or that a fork has left here

    def begin(self) -> None:
        """Wrap ``init_process_group``, now or once torch is imported; again: do nothing."""
        if self._hook is None:
            self._hook = ImportHook(MODULE, self._wrap)

    def joined(self) -> Membership | None:
        """Return the place in the group that was joined last, also after its end; None where there was none."""
        group = _default_group()
        if group is not None and id(group) != self._known:
            self._look(group)
        return self._joined

    def _look(self, group: object) -> None:
        module: Any = sys.modules[MODULE]
        try:
            found = Membership(int(module.get_rank()), int(module.get_world_size()))
        except Exception as error:  # noqa: BLE001 - the border to torch: the group may end in this moment
            registry.default.count_error("instrumentation")
            _log.warning("could not read the rank of this process from its process group: %r", error)
        else:
            self._joined = found if found.rank >= 0 else self._joined
        self._known = id(group)

    def _wrap(self, module: ModuleType) -> None:
        original: Any = getattr(module, "init_process_group", None)
        if original is None:  # a torch that was built without it
            return

        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            done = original(*args, **kwargs)
            self._tell()
            return done

        for each in (module, sys.modules.get(_PACKAGE)):
            if getattr(each, "init_process_group", None) is original:
                each.init_process_group = init_process_group  # type: ignore[union-attr] # torch's modules have it

    def _tell(self) -> None:
        self._known = 0  # a new group may be where an old one was
        for call in list(self.on_join) if self.joined() is not None else ():
            try:
                call()
            except Exception:  # noqa: BLE001 - the border to the program's init_process_group
                registry.default.count_error("instrumentation")
                _log.exception("could not start telemetry when this process became a rank")

    def reset_in_child(self) -> None:
        """Begin anew after a fork: the group is the parent's."""
        self._joined, self._known = None, id(_default_group())


def _default_group() -> object:
    """Return torch's default process group; None where there is none, or no torch."""
    member = getattr(sys.modules.get(MODULE), "GroupMember", None)
    return getattr(member, "WORLD", None)


group_watch = GroupWatch()

at_fork("process_group", in_child=group_watch.reset_in_child)
