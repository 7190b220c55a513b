"""The import of a library that is no dependency of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def library(name: str, install: str) -> Iterator[None]:
    """Name the package to install where an import fails; an error from within an installed library stays as it is.

    Args:
        name: of the library's package.
        install: what ``pip install`` takes.

    Raises:
        ImportError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        message = f"this integration requires {name}, which is not installed: pip install {install!r}"
        raise ImportError(message, name=error.name) from error
