"""``tachograph export``: its command line."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser, reason
from tachograph.runs.catalogue import opened
from tachograph.runs.export import lines, write_csv, write_jsonl
from tachograph.runs.recorded import Point
from tachograph.runs.run import Run


def command(arguments: Sequence[str]) -> int:
    """Write a run, and return the exit code: 1 where a part of it could not be read, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        run = opened(options.run, options.store)
        points = _points(run, options.metric)
    except (LookupError, OSError) as error:
        return fail("export", reason(error), WRONG_USAGE)
    try:
        with _output(options.output) as out:
            if options.format == "csv":
                write_csv(points, out)
            else:
                write_jsonl(lines(run, points, everything=not options.metric), out)
    except BrokenPipeError:  # the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return fail("export", reason(error), FAILED)
    if run.damage:
        more = f" (and {len(run.damage) - 1} more)" if len(run.damage) > 1 else ""
        return fail("export", f"{run.path} is damaged, what can be read is exported: {run.damage[0]}{more}", FAILED)
    return 0


def _points(run: Run, names: Sequence[str] | None) -> Iterable[Point]:
    return chain.from_iterable([run.points(name) for name in dict.fromkeys(names)]) if names else run.points()


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="")
        yield sys.stdout
        sys.stdout.flush()
        return
    with path.open("w", encoding="utf-8", newline="") as out:
        yield out


def _parser() -> argparse.ArgumentParser:
    made = parser("export", "Write every point of a run's journal, as exact as it was recorded.")
    add = made.add_argument
    add("run", metavar="RUN", help="the run's id; 'tachograph runs list' shows them")
    add("--format", choices=["csv", "jsonl"], default="csv", help="jsonl has definitions and events, too (default csv)")
    add("--metric", action="append", metavar="NAME", help="points of this metric only; may be given more than once")
    add("--output", type=Path, metavar="FILE", help="where to write it (default: standard output)")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: TACHOGRAPH_STORE)")
    return made
