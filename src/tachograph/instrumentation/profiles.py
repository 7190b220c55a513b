"""``--prof``: functions profiled by name, with no decorator in the program."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from fnmatch import fnmatchcase
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from tachograph.identity.import_hooks import ImportWatch
from tachograph.identity.program import program_name
from tachograph.identity.rank import descends_from_rank, rank_attributes
from tachograph.instrumentation._main_module import MAIN_NAMES, MainModule, is_spawned
from tachograph.profiling import prof
from tachograph.profiling.profiled import MARK
from tachograph.recording import registry
from tachograph.recording.interrupts import pass_on

_MODULE = re.compile(r"[\w*?-]+(\.[\w*?-]+)*")
_FUNCTION = re.compile(r"[\w*?]+(\.[\w*?]+)*")
_REAL_PROF = "torch.distributed.elastic.metrics.api"
_AGENT = "torch.distributed.elastic.agent.server.api"
# The code that measures and delivers is not measured itself.
_OURS = frozenset({"tachograph", "opentelemetry", "google", "grpc", "prometheus_client", "requests", "urllib3"})

_log = logging.getLogger("tachograph")


class Pattern(NamedTuple):
    """A pattern of functions: ``module`` matches the module's name, ``function`` the qualified name.

    ``*`` stands for any characters, dots included, and ``?`` for one. A name with a leading underscore is matched only
    where the pattern has one, too.
    """

    module: str
    function: str

    def names_module(self, name: str) -> bool:
        """Tell whether the pattern names functions of a module; wildcards match neither Python's modules nor ours."""
        if name == self.module:
            return True
        top, wanted = name.partition(".")[0], self.module.partition(".")[0]
        if top != wanted and (top in sys.stdlib_module_names or top in _OURS):
            return False
        return fnmatchcase(name, self.module)

    def names_function(self, qualified: str) -> bool:
        """Tell whether the pattern names a function or method."""
        private = any(part.startswith("_") for part in qualified.split("."))
        if private and not any(part.startswith("_") for part in self.function.split(".")):
            return False
        return fnmatchcase(qualified, self.function)

    def may_name(self, top: str) -> bool:
        """Tell whether the pattern may name a function of this name, or a method of a class of this name."""
        parts = self.function.split(".")
        return any(fnmatchcase(top, start) for start in (parts[0], self.function)) or "*" in parts[0]

    def __str__(self) -> str:
        """Return the pattern as it was written."""
        return f"{self.module}:{self.function}"


def parse(pattern: str) -> Pattern:
    """Return the pattern ``package.module:function`` or ``package.module:Class.method``; both sides take ``*``, ``?``.

    The script's own functions are those of the module ``__main__``, or of the name of its file.

    Raises:
        TypeError: the pattern is not a string.
        ValueError: it is not of that form.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a --prof pattern must be a string, not {type(pattern).__name__}: {pattern!r:.100}")
    module, colon, function = pattern.strip().partition(":")
    if not colon or not _MODULE.fullmatch(module) or not _FUNCTION.fullmatch(function):
        raise ValueError(
            f"--prof is {pattern!r:.200}: use package.module:function or package.module:Class.method, "
            "__main__:function for the script itself; * and ? are wildcards"
        )
    return Pattern(module, function)


class Profiles:
    """Profiles, as :func:`tachograph.prof` does, every function that a pattern names, until it is closed.

    Functions, methods, static and class methods, of any kind, where they are defined: right after the import of their
    module, or, in the script itself, before the next statement is executed. A function that is profiled already stays
    as it is. A pattern that has matched no function by the end of the process is logged once, by the first rank of a
    node or a program that is no rank.

    Args:
        patterns: of the functions to profile.
        environ: the environment, for the rank.
    """

    def __init__(self, patterns: Sequence[Pattern], environ: Mapping[str, str] = os.environ) -> None:
        self._patterns = tuple(dict.fromkeys(patterns))
        self._environ = environ
        self._lock = threading.Lock()
        self._used: set[Pattern] = set()
        self._seen: dict[Pattern, str] = {}
        self._made: list[tuple[Any, str, Any, Any]] = []
        self._twins: dict[Any, Any] = {}
        self._pid = os.getpid()
        self._watch = ImportWatch(self._asks_for, self._imported)
        self._main = MainModule(self._names_in_main, self._profile) if self._may_name_main() else None
        atexit.register(self.report)

    def _asks_for(self, module: str) -> bool:
        return module not in MAIN_NAMES and any(pattern.names_module(module) for pattern in self._patterns)

    def _imported(self, module: ModuleType) -> None:
        self._profile(vars(module), [module.__name__])

    def _names_in_main(self, code: CodeType, names: Sequence[str]) -> bool:
        """Tell whether a pattern may name the function or class that the script is about to define."""
        return any(pattern.may_name(code.co_name) for pattern in self._patterns if _one_of(pattern, names))

    def _may_name_main(self) -> bool:
        """Tell whether a pattern may name the script, by its name in the command."""
        program = program_name()
        names = (MAIN_NAMES[0], program, program.rpartition(".")[2])
        return is_spawned() or any(_one_of(pattern, names) for pattern in self._patterns)

    def _profile(self, namespace: MutableMapping[str, Any], names: Sequence[str]) -> None:
        patterns = [pattern for pattern in self._patterns if _one_of(pattern, names)]
        module = namespace.get("__name__")
        with self._lock:
            for pattern in patterns:
                self._seen.setdefault(pattern, str(module))
            for owner, qualified, name, member in list(_members(namespace, module)):
                meant = [pattern for pattern in patterns if pattern.names_function(qualified)]
                if meant:
                    self._used.update(meant)
                    self._replace(owner, name, member)

    def _replace(self, owner: Any, name: str, member: Any) -> None:
        function = _function(member)
        if hasattr(function, MARK) or getattr(function, "__globals__", {}).get("__name__") == _REAL_PROF:
            return
        try:
            made = self._twins.get(member) or prof(member)
            self._twins[member] = made
            _set(owner, name, made)
        except Exception as error:  # noqa: BLE001 - the border to the program: a class may forbid it
            pass_on(error)
            registry.default.count_error("instrumentation")
            _log.exception("could not profile %s", getattr(function, "__qualname__", name))
        else:
            self._made.append((owner, name, member, made))

    def close(self) -> None:
        """Restore every function whose wrapper is still in place, and profile no further ones."""
        atexit.unregister(self.report)
        self._watch.close()
        if self._main is not None:
            self._main.close()
        with self._lock:
            for owner, name, member, made in reversed(self._made):
                if (owner if isinstance(owner, dict) else vars(owner)).get(name) is made:
                    _set(owner, name, member)
            self._made.clear()
            self._twins.clear()

    def report(self) -> None:
        """Log the patterns that have matched no function, where this process is the one to do so."""
        if os.getpid() != self._pid or not _speaks(self._environ):
            return
        for pattern in self._patterns:
            if pattern in self._used or not registry.default.enabled:
                continue
            if pattern in self._seen:
                why = f"module {self._seen[pattern]} has no function with a matching name that can be profiled"
            else:
                why = "the module was never imported"
            _log.warning("--prof %s matched nothing in %s (pid %d): %s", pattern, program_name(), self._pid, why)


def _speaks(environ: Mapping[str, str]) -> bool:
    """Tell whether the process is likely to train: launchers and helpers import none of the modules."""
    place = rank_attributes(environ)
    if place.get("dl.role") == "agent" or _AGENT in sys.modules or descends_from_rank(environ, os.getpid()):
        return False
    if "dl.local_rank" in place:
        return place["dl.local_rank"] == 0
    return not any("multiprocessing" in word for word in sys.orig_argv)


def _one_of(pattern: Pattern, names: Sequence[str]) -> bool:
    return any(pattern.names_module(name) for name in names)


def _members(namespace: Mapping[str, Any], module: Any) -> Iterator[tuple[Any, str, str, Any]]:
    """Yield the definitions of a module: owner, qualified name, name in the owner, and the object.

    A function with two names comes twice: it may be called by either.
    """
    for name, found in list(namespace.items()):
        if inspect.isfunction(found) and found.__module__ == module:
            own = found.__qualname__
            yield namespace, name if "." in own or namespace.get(own) is not found else own, name, found
        elif inspect.isclass(found) and found.__module__ == module and found.__qualname__ == name:
            yield from _methods(found)


def _methods(cls: type) -> Iterator[tuple[Any, str, str, Any]]:
    for name, found in list(vars(cls).items()):
        qualified = f"{cls.__qualname__}.{name}"
        if inspect.isclass(found) and found.__qualname__ == qualified:
            yield from _methods(found)
        function = _function(found)
        if inspect.isfunction(function) and function.__qualname__ == qualified:
            yield cls, qualified, name, found


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _set(owner: Any, name: str, member: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = member
    else:
        setattr(owner, name, member)
