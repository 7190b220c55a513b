"""Wrappers around functions of the program and of its libraries, which warnings and log records pass over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, TypeVar, cast

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])

# ``stacklevel``, of warnings and of logging, does not count frames whose file has both of these words in its name: they
# are the import system's (Python/_warnings.c, is_internal_filename; logging._is_internal_frame). CPython has no other
# way: the file prefixes that it skips since 3.12 are an argument of the call that warns.
HIDDEN_SUFFIX = " [hidden like importlib._bootstrap]"


def wraps(original: Any) -> Callable[[Wrapper], Wrapper]:
    """Return a decorator like :func:`functools.wraps` that also hides the frames of the wrapper.

    Args:
        original: the wrapped function. If it warns about its caller, the warning names the line that it would name
            without the wrapper.
    """

    def wrap(wrapper: Wrapper) -> Wrapper:
        return hide_frame(cast("Wrapper", functools.wraps(original)(wrapper)))

    return wrap


def hide_frame(function: Wrapper) -> Wrapper:
    """Make ``stacklevel`` of warnings and of logging not count the frames of a function."""
    changed: Any = function
    changed.__code__ = _hidden(changed.__code__)
    return function


@cache  # the functions that one piece of code makes share the result
def _hidden(code: CodeType) -> CodeType:
    return code.replace(co_filename=code.co_filename.removesuffix(HIDDEN_SUFFIX) + HIDDEN_SUFFIX)
