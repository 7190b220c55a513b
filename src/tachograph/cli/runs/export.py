"""``tachograph runs export``."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tachograph.cli.command_line import FAILED, Parser, add_store, fail, parser, print_errors, reason
from tachograph.cli.runs.tensorboard import require_tensorboard
from tachograph.runs.catalogue import opened
from tachograph.runs.export import lines, lines_of, write_csv, write_jsonl
from tachograph.runs.parquet import WriteParquet, parquet_writer
from tachograph.runs.recorded_series import KINDS, Kind
from tachograph.runs.run import Run


class _Table(NamedTuple):
    """One metric of a run, or all of a kind where ``name`` is None; each row can be read once."""

    run: Run
    name: str | None
    columns: Sequence[str]
    rows: Iterator[list[Any]]


@print_errors("runs export")
def command(arguments: Sequence[str]) -> int:
    """Write runs, and return the exit code: 1 if a part of one could not be read, 2 for wrong usage."""
    options = build_parser().parse_intermixed_args(arguments)  # runs before and behind the options
    prepare = _prepare_log_folders if options.format == "tensorboard" else _prepare_tables
    runs = [opened(name, options.store) for name in dict.fromkeys(options.run)]
    write = prepare(options, runs)
    try:
        write()
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("runs export", reason(error), FAILED)
    for run in (damaged := [run for run in runs if run.damage]):
        more = f" (and {len(run.damage) - 1} more)" if len(run.damage) > 1 else ""
        fail("runs export", f"{run.path} is damaged, what can be read is exported: {run.damage[0]}{more}", FAILED)
    return FAILED if damaged else 0


def _prepare_tables(options: argparse.Namespace, runs: Sequence[Run]) -> Callable[[], None]:
    """Return a function that writes rows, or JSON lines.

    Raises:
        ImportError: an extra is missing.
        LookupError: none of the runs has a metric.
        ValueError: the options do not fit together.
    """
    tables = _tables(runs, _metric_names(options), options.kind)
    parquet = parquet_writer() if options.format == "parquet" else None
    if options.format != "jsonl" and len({table.columns for table in tables}) > 1:
        raise ValueError("these metrics have different columns: export them apart, with --kind, or as --format jsonl")
    if parquet and options.output is None and sys.stdout.isatty():
        raise ValueError("--output must name the file: a terminal cannot show Parquet")

    def write() -> None:
        with _output(options.output) as out:
            _write(tables, out, options, parquet)

    return write


def _prepare_log_folders(options: argparse.Namespace, runs: Sequence[Run]) -> Callable[[], None]:
    """Return a function that writes each run into a log folder of TensorBoard.

    Raises:
        ImportError: the extra is missing.
        LookupError: none of the runs has a metric.
        ValueError: the options do not fit together.
    """
    if options.output is None:
        raise ValueError("--output must name the folder for TensorBoard: its --logdir")
    if options.kind not in (None, "curve"):
        raise ValueError(f"TensorBoard's files have no {options.kind}s: leave out --kind")
    _tables(runs, _metric_names(options), "curve" if options.metric else None)  # reports the metrics that are missing
    require_tensorboard()
    from tachograph.cli.runs.tensorboard.exporting import write_log_folder

    def write() -> None:
        for run in runs:
            write_log_folder(run, options.output, options.metric)

    return write


def _metric_names(options: argparse.Namespace) -> list[str | None]:
    return list(dict.fromkeys(options.metric or [None]))


def _tables(runs: Sequence[Run], names: Sequence[str | None], kind: Kind | None) -> list[_Table]:
    """Return the tables of metrics, run by run; a line says which of several runs has no such metric.

    Args:
        runs: at least one.
        names: of metrics; None for all of a kind.
        kind: see :meth:`Run.table`.

    Raises:
        LookupError: none of the runs has a metric.
    """
    found, missing = list[_Table](), dict[str | None, list[LookupError]]()
    for run in runs:
        _refuse_ambiguous(run, names)
        for name in names:
            try:
                found.append(_Table(run, name, *run.table(name, kind=kind)))
            except LookupError as error:
                missing.setdefault(name, []).append(error)
    for errors in missing.values():
        if len(errors) == len(runs):
            raise errors[0]
    for each in chain.from_iterable(missing.values()):
        sys.stderr.write(f"tachograph runs export: {reason(each)}\n")
    return found


def _refuse_ambiguous(run: Run, names: Sequence[str | None]) -> None:
    """Check that each name stands for a metric of one group.

    Raises:
        LookupError: several groups have it; the message names them.
    """
    for name in names:
        groups = run.groups(name) if name is not None else []
        if len(groups) > 1:
            options = ", ".join(f"--metric {group}/{name}" for group in groups)
            raise LookupError(f"run {run.id!r} has {name!r} in {len(groups)} groups: choose from {options}")


def _write(tables: Sequence[_Table], out: TextIO, options: argparse.Namespace, parquet: WriteParquet | None) -> None:
    several = len(set(options.run)) > 1
    if options.format == "jsonl":
        for run, name, *_ in tables:
            found = lines(run) if name is options.kind is None else lines_of(run, name, options.kind)
            write_jsonl(({**line, "run": run.id} if several else line for line in found), out)
        return
    columns = ("run", *tables[0].columns) if several else tables[0].columns
    rows = ([run.id, *row] if several else row for run, _, _, rows in tables for row in rows)
    if parquet:
        parquet(columns, rows, out.buffer)
    else:
        write_csv(columns, rows, out)


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


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs export", "Write every point of runs, exactly as it was recorded.")
    add = built.add_argument
    add("run", nargs="+", metavar="RUN", help="The ids of the runs; with several, each row names its run")
    add(
        "--format",
        choices=["csv", "jsonl", "parquet", "tensorboard"],
        default="csv",
        help="jsonl writes everything; parquet and tensorboard need the extra of that name; tensorboard writes a folder"
        " (default: csv)",
    )
    add(
        "--metric",
        action="append",
        metavar="NAME",
        help="Only this metric, such as loss or eval/loss (may be repeated)",
    )
    add(
        "--kind",
        choices=KINDS,
        help="Write intervals of histograms, or samples of counters or gauges (default: points of curves)",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="The file, or the folder for TensorBoard (default: standard output)",
    )
    add_store(built)
    return built
