"""Settings: one value each, from a keyword argument or from an environment variable, with an error that names it.

An empty variable counts as unset, and words do not depend on case: OpenTelemetry specification, "Environment Variable
Specification". A wrong value is an error, not a warning: this rule is our own.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

from tachograph.recording.log import log
from tachograph.recording.values import shown

Word = TypeVar("Word", bound=str)

# Set by `tachograph run` for the processes of its job. Names with two underscores are internal: they are documented
# nowhere and may change at any time.
JOB_HUB = "TACHOGRAPH__HUB"  # the URL of the job's hub
JOB_ENDPOINT = "TACHOGRAPH__ENDPOINT"  # the OTLP endpoint that the user named

_LAST_PORT = 65535
_MOST_SHOWN = 200  # characters of a value
_BOOLEAN_DIGITS = {"1": "true", "0": "false"}


def clean(value: str) -> str:
    """Return ``value`` as UTF-8 can carry it; bytes that the system could not decode become U+FFFD."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape" if _escaped(value) else "replace").decode("utf-8", "replace")
    return value


def _escaped(value: str) -> bool:
    return all(not "\ud800" <= letter <= "\udfff" or "\udc80" <= letter <= "\udcff" for letter in value)


def system_text(value: str) -> str:
    """Return ``value`` as the operating system takes it in a path, an argument or a variable: UTF-8 in any locale.

    In a locale of another encoding, :func:`clean` returns letters that the interpreter itself would refuse there.
    """
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return os.fsdecode(clean(value).encode())
    return value


def text(environ: Mapping[str, str], *variables: str) -> str:
    """Return the value of the first variable that is set, without blanks around it; empty where none is."""
    for variable in variables:
        value = environ.get(variable, "").strip()
        if value:
            return clean(value)
    return ""


def pairs(value: str) -> tuple[dict[str, str], list[str]]:
    """Return the keys and percent-decoded values of ``a=b,c=d``, and the invalid parts, each up to its ``=``.

    OpenTelemetry specification, "Resource SDK" and "OpenTelemetry Protocol Exporter": as W3C Baggage, without
    properties. The value of an invalid part may be a secret, and is never returned.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for part in value.split(","):
        key, equals, encoded = part.partition("=")
        name = unquote(key).strip()
        if name and equals:
            found[name] = unquote(encoded.strip())
        elif part.strip():
            wrong.append(key.strip() if equals else "…")
    return found, wrong


@lru_cache(maxsize=16)
def _resource_pairs(value: str) -> Mapping[str, str]:
    found, wrong = pairs(value)
    if wrong:
        log.warning("OTEL_RESOURCE_ATTRIBUTES: ignoring %d entries that are not key=value", len(wrong))
    return MappingProxyType(found)


def resource_variable(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the attributes in OTEL_RESOURCE_ATTRIBUTES; a part without ``key=value`` is left out, and logged once."""
    return _resource_pairs(text(environ, "OTEL_RESOURCE_ATTRIBUTES"))


class Setting(NamedTuple):
    """A value that a user gave, and its source: the name of a variable, or ``keyword=``."""

    source: str
    value: object

    @property
    def is_variable(self) -> bool:
        """Tell whether the value is the text of an environment variable."""
        return not self.source.endswith("=")

    def wrong(self, allowed: str) -> ValueError:
        """Return the error to raise for this value."""
        return ValueError(f"{self.source} is {shown(self.value, _MOST_SHOWN)}: {allowed}")

    def wrong_type(self, wanted: str) -> TypeError:
        """Return the error to raise for a value of this type."""
        given = shown(self.value, _MOST_SHOWN)
        return TypeError(f"{self.source} must be {wanted}, not {type(self.value).__name__}: {given}")

    def string(self) -> str:
        """Return a string that is not empty."""
        if not isinstance(self.value, str):
            raise self.wrong_type("a string")
        if not self.value.strip():
            raise self.wrong("it must not be empty")
        return clean(self.value.strip())

    def choice(self, allowed: Sequence[Word]) -> Word:
        """Return the word of ``allowed`` that was given."""
        given = self.string().lower()
        for word in allowed:
            if word == given:
                return word
        raise self.wrong(f"expected one of {', '.join(map(repr, allowed))}")

    def boolean_or(self, *words: str) -> str:
        """Return ``true``, ``false`` or one of ``words``; a variable may also give ``1`` or ``0``."""
        word = _BOOLEAN_DIGITS.get(self.string())
        return word or self.choice(("true", "false", *words))

    def boolean(self) -> bool:
        """Return a bool: a variable gives ``true`` or ``false``, or ``1`` or ``0``."""
        if self.is_variable:
            return self.boolean_or() == "true"
        if not isinstance(self.value, bool):
            raise self.wrong_type("True or False")
        return self.value

    def seconds(self) -> float:
        """Return seconds above zero: a variable gives milliseconds, a keyword argument seconds."""
        unit, factor = ("milliseconds", 1e-3) if self.is_variable else ("seconds", 1.0)
        number = math.nan
        if self.is_variable:
            with contextlib.suppress(ValueError):
                number = float(self.string())
        elif isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong_type("a number of seconds")
        else:
            with contextlib.suppress(OverflowError):
                number = float(self.value)
        if not 0 < number < math.inf:
            raise self.wrong(f"expected a number of {unit} above 0")
        return number * factor

    def port(self) -> int:
        """Return a TCP port; 0 stands for any free one."""
        if self.is_variable:
            given = self.string()
            readable = given.isascii() and given.isdigit() and len(given) <= len(str(_LAST_PORT))
            number = int(given) if readable else -1
        elif isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.wrong_type("an int")
        else:
            number = self.value
        if not 0 <= number <= _LAST_PORT:
            raise self.wrong(f"expected a port from 1 to {_LAST_PORT}, or 0 for any free port")
        return number


def setting(environ: Mapping[str, str], keyword: str, value: object, *variables: str) -> Setting | None:
    """Return the keyword argument where it was given, else the first variable that is set, else ``None``."""
    if value is not None:
        return Setting(f"{keyword}=", value)
    for variable in variables:
        found = text(environ, variable)
        if found:
            return Setting(variable, found)
    return None


def store(environ: Mapping[str, str]) -> Path:
    """Return the folder for files that outlive the process; it need not exist.

    TACHOGRAPH_STORE, else ``tachograph`` in XDG_STATE_HOME or in ``~/.local/state`` (XDG Base Directory
    Specification: a relative path does not count), else, without a home, in the folder for temporary files.
    """
    home = _home(environ)
    given = system_text(text(environ, "TACHOGRAPH_STORE"))
    if given:
        return Path(home + given[1:] if home and (given == "~" or given.startswith("~/")) else given)
    state = Path(system_text(text(environ, "XDG_STATE_HOME")))
    if state.is_absolute():
        return state / "tachograph"
    if home:
        return Path(home, ".local", "state", "tachograph")
    return temporary_store()


def temporary_store() -> Path:
    """Return the store of this user where there is no home, or none that can be written."""
    return Path(tempfile.gettempdir(), f"tachograph-{os.getuid()}")


def _home(environ: Mapping[str, str]) -> str:
    try:
        return system_text(text(environ, "HOME")) or str(Path.home())
    except RuntimeError:
        return ""
