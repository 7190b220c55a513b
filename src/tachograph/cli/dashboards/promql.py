"""Expressions of PromQL that are safe in a dashboard, whatever names are in them.

Grafana replaces ``$name``, ``${name}`` and ``[[name]]`` in everything, and ``{{label}}`` in legends. It knows no escape
for them: in a string of PromQL a character's number stands for it, in text for people an invisible character comes
between.
"""

from __future__ import annotations

import re

WHO = 'dl_run_id=~"$run",dl_role=~"$role",dl_rank=~"$rank"'  # the variables of every dashboard
_NOT_PLAIN = re.compile(r'["\\$\[\x00-\x1f\x7f]')
_TEMPLATE = re.compile(r"\$(?=[\w{])|\[(?=\[)|\{(?=\{)")
_JOINER = "\u2060"  # WORD JOINER: no width, and no line breaks there


def quoted(text: str) -> str:
    """Return text as a string literal: Prometheus documentation, "Querying basics", "String literals"."""
    return f'"{_NOT_PLAIN.sub(_numbered, text)}"'


def _numbered(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def shown(text: str) -> str:
    """Return text for a title or a legend, in which Grafana replaces nothing."""
    return _TEMPLATE.sub(lambda match: match[0] + _JOINER, text)


def regex(text: str) -> str:
    """Return a regular expression (RE2) that is only this text."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)


def selector(name: str, *matchers: str) -> str:
    """Return a selector of a metric, by its name in classic characters."""
    return f"{name}{{{','.join(matchers)}}}"
