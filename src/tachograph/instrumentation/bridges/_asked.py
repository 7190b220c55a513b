"""The setting TACHOGRAPH_BRIDGES: the bridges that a user asks for."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from tachograph.identity.environment import text
from tachograph.instrumentation.bridges._libraries import LIBRARIES
from tachograph.recording.log import log

VARIABLE = "TACHOGRAPH_BRIDGES"
_WORDS = ("all", "none", *LIBRARIES)


def asked_bridges(environ: Mapping[str, str], default: str) -> list[str]:
    """Return the names of the bridges that TACHOGRAPH_BRIDGES asks for: ``all``, ``none``, or a list with commas.

    A name that is none is a line in the log, with the nearest one, and the others count.

    Args:
        environ: has the variable.
        default: its value where it is not set.
    """
    asked = [name.strip().lower() for name in (text(environ, VARIABLE) or default).split(",") if name.strip()]
    if asked == ["none"]:
        return []
    if asked == ["all"]:
        return list(LIBRARIES)
    wrong = [name for name in asked if name not in LIBRARIES]
    if wrong:
        message = "%s: unknown bridge %s%s: use all, none, or a list of %s"
        nearest = dict.fromkeys(near for name in wrong for near in get_close_matches(name, _WORDS, 1))
        meant = f" (did you mean {', '.join(nearest)}?)" if nearest else ""
        log.warning(message, VARIABLE, ", ".join(map(repr, wrong))[:200], meant, ",".join(LIBRARIES))
    return [name for name in LIBRARIES if name in asked]
