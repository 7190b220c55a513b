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
_PLAIN = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|true|false|none|null", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Tell whether a name says that its value is secret."""
    return "passw" in name.lower() or not _SECRET.isdisjoint(word.lower() for word in _WORD.findall(name))


def masked(name: str, text: str) -> str:
    """Return a text without its secrets: the whole of it under a secret name, else user and password of its URLs."""
    if text and is_secret(name):
        return MASK
    return _USERINFO.sub(f"{MASK}@", text)


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command line without their secrets: ``--token=…``, ``--token …`` and ``TOKEN=…``."""
    found: list[str] = []
    awaited = ""
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if awaited and not argument.startswith("-"):
            found.append(argument if _PLAIN.fullmatch(argument) else masked(awaited, argument))
            awaited = ""
            continue
        awaited = "" if separator or not argument.startswith("-") else name
        if separator and _NAME.fullmatch(name) and is_secret(name) and not _PLAIN.fullmatch(value):
            found.append(f"{name}={MASK}" if value else argument)
        else:
            found.append(_USERINFO.sub(f"{MASK}@", argument))
    return found
