"""``tachograph export``: its command line."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser, reason
from tachograph.runs.catalogue import opened
from tachograph.runs.export import lines, lines_of, write_csv, write_jsonl
from tachograph.runs.recorded_series import KINDS


def command(arguments: Sequence[str]) -> int:
    """Write a run, and return the exit code: 1 where a part of it could not be read, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    names = list(dict.fromkeys(options.metric or ()))
    try:
        run = opened(options.run, options.store)
        tables = [run.table(name, kind=options.kind) for name in names or [None]]
    except (LookupError, OSError) as error:
        return fail("export", reason(error), WRONG_USAGE)
    if options.format == "csv" and len({columns for columns, _ in tables}) > 1:
        why = "these metrics have different columns: export them apart, with --kind, or as --format jsonl"
        return fail("export", why, WRONG_USAGE)
    try:
        with _output(options.output) as out:
            if options.format == "csv":
                write_csv(tables[0][0], chain.from_iterable(rows for _, rows in tables), out)
            elif names or options.kind:
                some = (lines_of(run, name, options.kind) for name in names or [None])
                write_jsonl(chain.from_iterable(some), out)
            else:
                write_jsonl(lines(run), out)
    except BrokenPipeError:  # the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return fail("export", reason(error), FAILED)
    if run.damage:
        more = f" (and {len(run.damage) - 1} more)" if len(run.damage) > 1 else ""
        return fail("export", f"{run.path} is damaged, what can be read is exported: {run.damage[0]}{more}", FAILED)
    return 0


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
    add("--format", choices=["csv", "jsonl"], default="csv", help="jsonl has everything in one file (default csv)")
    add("--metric", action="append", metavar="NAME", help="this metric only; may be given more than once")
    add(
        "--kind",
        choices=KINDS,
        help="intervals of histograms, samples of counters or gauges (default: points of curves)",
    )
    add("--output", type=Path, metavar="FILE", help="where to write it (default: standard output)")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: TACHOGRAPH_STORE)")
    return made
