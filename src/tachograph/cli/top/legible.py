"""Legible names, numbers and times on a terminal."""

from __future__ import annotations

import math
from datetime import datetime

NOTHING = "-"
_NAME = 200  # characters of a name that are shown at most
_LONGEST = 10  # characters of a number
_WHOLE = 10_000_000  # below it, whole numbers are written out
_NANO = 1_000_000_000
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LATEST = 253_402_300_799  # seconds until the end of the year 9999, where datetime ends


def printable(text: object, most: int = _NAME) -> str:
    r"""Return a text that cannot move the cursor, change colors or hide: unprintable characters are spelled out.

    Escape sequences begin with a control character; so do those that turn the direction of writing (Unicode, category
    Cf). All of these are written as in Python: ``\x1b``, ``\n``, ``\u202e``.

    Args:
        text: of a run.
        most: characters, the last one of them an ellipsis where there were more.
    """
    whole = str(text)
    shown = whole if len(whole) <= most else whole[: most - 1]
    if not shown.isprintable():
        shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in shown)
    return shown if len(whole) <= most else f"{shown[: most - 1]}…"


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters: of a longer one both ends, which say most of a path."""
    if len(text) <= most:
        return text
    end = max(most - 1, 1) * 2 // 3
    return f"{text[: max(most - 1 - end, 0)]}…{text[-end:]}"


def shown_number(value: float | None) -> str:
    """Return a number in at most ten characters: whole ones below ten millions exactly, others to four digits."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < _WHOLE:
        return f"{int(value):,}"
    shown = f"{value:.4g}"
    return shown if len(shown) <= _LONGEST else f"{value:.3g}"


def count(value: float | None) -> str:
    """Return how many there are, in at most six characters: ``982``, ``12.4k``, ``3.1M``."""
    if value is None:
        return NOTHING
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{value:.0f}"


def per_second(value: float | None) -> str:
    """Return a rate: ``0.5/s``, ``12/s``, ``3.1k/s``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.3g}/s" if abs(value) < 1000 else f"{count(value)}/s"  # noqa: PLR2004 - where .3g gets an exponent


def lasting(seconds: float | None) -> str:
    """Return a duration as people say it, in two units: ``3 h 12 m``, ``4 m 05 s``, ``12 s``."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    whole = max(0, round(seconds))
    if whole >= _DAY:
        return f"{whole // _DAY} d {whole % _DAY // _HOUR:02} h"
    if whole >= _HOUR:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} m"
    return f"{whole // _MINUTE} m {whole % _MINUTE:02} s" if whole >= _MINUTE else f"{whole} s"


def took(seconds: float | None) -> str:
    """Return a duration that was measured, to three digits: ``12.3 ms``, ``840 µs``, ``1.25 s``."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}" if abs(seconds / size) < 999.5 else f"{seconds / size:,.0f} {unit}"  # noqa: PLR2004 - as above
    return f"{seconds / 1e-9:.3g} ns"


def clock(nanoseconds: int) -> str:
    """Return the time of the day, in this machine's time zone."""
    seconds = min(max(nanoseconds // _NANO, 0), _LATEST - _DAY)
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
