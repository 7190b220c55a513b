"""The number of examples that Hypothesis tries: a part of them in ``make test``, all of them in ``make long``."""

from __future__ import annotations

import os

_ALL = os.environ.get("TACHOGRAPH_TEST_EXAMPLES") == "all"
_PART = 4
_LEAST = 10


def examples(number: int = 100) -> int:
    """Return how many of ``number`` examples are tried: a quarter, where not all are asked for."""
    return number if _ALL else max(_LEAST, number // _PART)
