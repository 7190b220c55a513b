"""How much may wait on the disk for a destination that is away."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.identity.environment import setting

LIMIT = 2**30


def spool_limit_of(environ: Mapping[str, str]) -> int:
    """Return the bytes that a process may keep for each destination: TACHOGRAPH_SPOOL_LIMIT, else 1 GiB; 0 for none.

    Raises:
        ValueError: it is no number of bytes.
    """
    given = setting(environ, "", None, "TACHOGRAPH_SPOOL_LIMIT")
    if given is None:
        return LIMIT
    told = given.string()
    if not (told.isascii() and told.isdigit()):
        raise given.wrong("a number of bytes is allowed, and 0 for no spool")
    return int(told)
