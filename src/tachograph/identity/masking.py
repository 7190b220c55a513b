"""Secrets in command lines and configurations: masked before they are written down anywhere.

A name says that its value is secret where it has ``key``, ``token``, ``secret``, ``auth`` or ``credential`` as a whole
word, as ``api_key`` and ``authToken`` have and ``tokenizer`` has not, or contains ``passw``. Numbers and booleans are
never masked: ``max_tokens=4096`` is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_SECRET = frozenset({"key", "token", "secret", "secrets", "auth", "credential", "credentials"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
_NAME = re.compile(r"[\w.-]+")
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
# Within an argument: name=value, "name": "value", and --name value, as in a command for a shell, in JSON, in a query.
_NAMED = re.compile(r"""(?<![\w.-])(?:([\w.-]+)["']?\s*[=:]\s*|(--[\w.-]+)\s+(?=[^\s-]))""")
_VALUE = re.compile(r""""[^"]*"|'[^']*'|[^\s,;&"'(){}\[\]]+""")
_TRACEBACK = "Traceback (most recent call last):"
_READ = 4  # times as many characters as are kept: masking shortens a text, and takes time
_PLAIN = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|true|false|none|null", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Tell whether a name says that its value is secret."""
    if name.endswith(("Error", "Exception")):  # KeyError: 'lr'
        return False
    return "passw" in name.lower() or not _SECRET.isdisjoint(word.lower() for word in _WORD.findall(name))


def masked(name: str, text: str) -> str:
    """Return a text without its secrets: the whole of it under a secret name, else user and password of its URLs."""
    if text and is_secret(name):
        return MASK
    return _USERINFO.sub(f"{MASK}@", text)


def masked_text(text: str) -> str:
    """Return a text without the secrets in it: ``token=…``, ``"api_key": …``, and user and password of URLs."""
    return _masked_inside(_USERINFO.sub(f"{MASK}@", text))


def masked_message(message: str, most: int, kind: str = "") -> str:
    """Return the message of an exception without the secrets in it, in at most ``most`` characters.

    A message that holds a traceback as text, such as that of a DataLoader's worker, ends with the exception that it is
    about: that one comes first. Of a long message the first quarter and the end are kept.

    Args:
        message: of the exception.
        most: characters.
        kind: type of the exception, which the message needs not repeat.
    """
    cause, rest = split_cause(message.strip())
    text = "\n".join(filter(None, (cause.removeprefix(f"{kind}: "), rest)))
    return shortened(masked_text(shortened(text, _READ * most)), most)


def split_cause(text: str) -> tuple[str, str]:
    """Return the lines behind the last traceback in a text, and the lines before; the empty string if it has none."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return "", text
    lines = text[start:].split("\n")
    behind = next((place for place, line in enumerate(lines) if place and not line.startswith("  ")), len(lines))
    return "\n".join(lines[behind:]).strip(), text[:start] + "\n".join(lines[:behind])


def shortened(text: str, most: int) -> str:
    """Return a text without its middle if it is longer than ``most`` characters.

    The end begins with a line, if it has several: no secret is cut in two.
    """
    if len(text) <= most:
        return text
    end = text[most // 4 + 1 - most :]
    _, line_end, lines = end.partition("\n")
    return f"{text[: most // 4]}…{lines if line_end else end}"


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command line without their secrets: ``--token=…``, ``--token …`` and ``TOKEN=…``.

    Those within an argument are masked as well: ``bash -c 'TOKEN=… python train.py'``, ``--env=TOKEN=…``.
    """
    found: list[str] = []
    awaited = ""
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if awaited and not argument.startswith("-"):
            found.append(argument if _PLAIN.fullmatch(argument) else masked(awaited, argument))
            awaited = ""
            continue
        is_named = _NAME.fullmatch(name) and is_secret(name)
        awaited = name if is_named and not separator and argument.startswith("-") else ""
        if separator and is_named and not _PLAIN.fullmatch(value):
            found.append(f"{name}={MASK}" if value else argument)
        else:
            found.append(masked_text(argument))
    return found


def _masked_inside(argument: str) -> str:
    parts: list[str] = []
    place = 0
    for named in _NAMED.finditer(argument):
        value = _VALUE.match(argument, named.end())
        if value is None or named.start() < place or not is_secret(named[1] or named[2]):
            continue
        if not _PLAIN.fullmatch(value[0].strip("\"'")):
            parts += argument[place : value.start()], MASK
            place = value.end()
    return "".join([*parts, argument[place:]])
