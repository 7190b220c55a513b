"""Inputs for the library in this process: their judgement, and the folder for their output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing import Self


class ProcessKind(NamedTuple):
    """One kind of input to a process.

    Attributes:
        attack: its name in the table of results.
        share: number of inputs of this kind in a thousand.
        make: returns the input.
        judge: returns a complaint about the outcome of inputs, empty for none.
        together: number of inputs that are judged together; after a complaint each is judged again, alone.
    """

    attack: str
    share: int
    make: Callable[[Random], Any]
    judge: Callable[[Sequence[Any]], str]
    together: int = 1


def judged(kind: ProcessKind, given: Sequence[Any]) -> str:
    """Return a complaint about the outcome of inputs, a traceback on stderr included; empty for none."""
    with Captured() as captured:
        why = kind.judge(given)
    return why or ("a traceback: " + captured.said[-1500:] if "Traceback" in captured.said else "")


def described(given: Any) -> str:
    """Return the text of an input, with numbers of any length."""
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return repr(given)
    finally:
        sys.set_int_max_str_digits(most)


class Captured:
    """The standard streams of a process, for a while: output is in ``said``, and input is empty."""

    def __enter__(self) -> Self:
        folder()
        self._before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, self._out, self._err = io.StringIO(), io.BytesIO(), io.BytesIO()
        sys.stdout = io.TextIOWrapper(self._out, "utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(self._err, "utf-8", "backslashreplace", write_through=True)
        self._streams = sys.stdout, sys.stderr
        self.said = ""
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._before
        self.said = self._err.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables of this process's environment for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@cache
def folder() -> Path:
    """Return a folder of this process, which is its working directory from then on."""
    inner = Path(tempfile.mkdtemp(prefix="process-"), "in", "here")  # in the attack's folder, which goes at the end
    inner.mkdir(parents=True)
    os.chdir(inner)
    return inner
