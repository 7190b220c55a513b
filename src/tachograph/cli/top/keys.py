"""What somebody types at a terminal."""

from __future__ import annotations

import re

# ECMA-48 and xterm's "PC-Style Function Keys": in application mode the arrows begin with SS3.
_NAMES = {
    **dict.fromkeys(("[A", "OA", "k"), "up"),
    **dict.fromkeys(("[B", "OB", "j", "\r", "\n"), "down"),
    **dict.fromkeys(("[5~", "b", "\x02"), "page up"),
    **dict.fromkeys(("[6~", " ", "\x06"), "page down"),
    **dict.fromkeys(("[H", "OH", "[1~", "g"), "home"),
    **dict.fromkeys(("[F", "OF", "[4~", "G"), "end"),
    **dict.fromkeys(("q", "Q", "\x03", "\x04"), "quit"),
    **dict.fromkeys(("r", "R"), "ranks"),
    "\t": "next",
    "\x0c": "redraw",
}
_ONE = re.compile(r"\x1b([\[O][0-9;]*[A-Za-z~])|([^\x1b])", re.DOTALL)


def keys(typed: bytes) -> list[str]:
    """Return the names of the keys that were pressed; what is no key of ours is left out."""
    found = (match[1] or match[2] for match in _ONE.finditer(typed.decode("latin-1")))
    return [_NAMES[key] for key in found if key in _NAMES]
