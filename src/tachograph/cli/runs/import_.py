"""``tachograph runs import``: store runs that TensorBoard recorded."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tachograph.cli.command_line import FAILED, Parser, add_store, fail, parser, print_errors, reason
from tachograph.cli.runs.tensorboard import require_tensorboard
from tachograph.identity.environment import store
from tachograph.runs import StoreError, printable

if TYPE_CHECKING:
    from tachograph.cli.runs.tensorboard.event_files import EventFile
    from tachograph.cli.runs.tensorboard.folders import LogFolder
    from tachograph.cli.runs.tensorboard.importing import Imported

_REPORT_EVERY = 0.2  # seconds


@print_errors("runs import")
def command(arguments: Sequence[str]) -> int:
    """Import runs, and return the exit code: 1 if a part could not be read, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    root = Path(os.path.abspath(options.folder))  # noqa: PTH100 - resolve() would follow a link, and lose its name
    if not root.is_dir():
        raise NotADirectoryError(_explain_missing(root))
    require_tensorboard()
    from tachograph.cli.runs.tensorboard.folders import find_log_folders
    from tachograph.cli.runs.tensorboard.importing import import_log_folder

    codes = [0]

    def report_error(error: OSError) -> None:
        codes.append(_fail(reason(error), FAILED))

    folders = find_log_folders(root, report_error)
    if not folders and not any(codes):
        raise FileNotFoundError(f"{root} has no TensorBoard event files (their names contain 'tfevents')")
    for folder in folders:
        try:
            with contextlib.closing(Progress(folder.name)) as progress:
                imported = import_log_folder(folder, options.store or store(os.environ), progress)
        except StoreError:
            raise
        except OSError as error:
            report_error(error)
        else:
            codes.append(_print_result(folder, imported))
    return max(codes)


def _fail(why: str, code: int) -> int:
    return fail("runs import", why, code)


def _explain_missing(path: Path) -> str:
    """Return why a path is not a folder that can be read, with the folder that was probably meant."""
    if path.exists():
        return f"{path} is not a folder; name the folder that contains it"
    parent = path.parent
    names = [entry.name for entry in parent.iterdir() if entry.is_dir()] if os.access(parent, os.R_OK) else []
    nearest = get_close_matches(path.name, names, n=1)
    hint = (
        f"did you mean {parent / nearest[0]}?"
        if nearest
        else "name the folder that you pass to TensorBoard as --logdir"
    )
    return f"no such folder: {path}: {hint}"


def _print_result(folder: LogFolder, imported: Imported | None) -> int:
    """Print the result of an import, and return the exit code."""
    if imported is None:
        sys.stdout.write(printable(f"{folder.name}: empty so far") + "\n")
        return 0
    counts = [f"{imported.points:,} points"]
    if imported.histograms:
        counts.append(f"{imported.histograms:,} histograms")
    if imported.points:
        are_new = "all" if imported.new_points == imported.points else f"{imported.new_points:,} points"
        counts[-1] += f" ({are_new} new)"
    sys.stdout.write(printable(f"{folder.name}: run {imported.run}: {', '.join(counts)}") + "\n")
    if imported.skipped:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(imported.skipped.items()))
        _fail(f"{folder.name}: skipped, because they are not curves: {kinds}", 0)
    return max((_report_incomplete(file) for file in imported.incomplete), default=0)


def _report_incomplete(file: EventFile) -> int:
    if file.is_damaged():
        return _fail(f"{file.path} is damaged at byte {file.bytes_read:,}; what comes before it was imported", FAILED)
    why = "it ends within a record; import it again when more has been written"
    return _fail(f"{file.path}: skipped {file.unread_bytes:,} bytes: {why}", 0)


class Progress:
    """A line that is updated during a long import and cleared at the end, if there is a terminal.

    Args:
        name: of the folder that is imported.
        terminal: where the line is written (default: standard error).
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, terminal: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = printable(name)
        self._out = sys.stderr if terminal is None else terminal
        self._is_shown = self._out.isatty()
        self._clock = clock
        self._reported_at = clock()
        self._width = 0

    def __call__(self, file: EventFile, points: int) -> None:
        """Show the file that is being read, and the points of the run so far."""
        now = self._clock()
        if not self._is_shown or now - self._reported_at < _REPORT_EVERY:
            return
        self._reported_at = now
        percent = 100 * file.bytes_read // max(file.size, 1)
        line = f"{self._name}: {points:,} points, {percent} % of {printable(file.path.name)}"
        self._out.write(f"\r{line.ljust(self._width)}")
        self._out.flush()
        self._width = len(line)

    def close(self) -> None:
        """Clear the line."""
        if self._width:
            self._out.write(f"\r{' ' * self._width}\r")
            self._out.flush()


def _program(value: str) -> str:
    if value != "tensorboard":
        raise argparse.ArgumentTypeError(f"cannot import from {value!r:.100}, only from 'tensorboard'")
    return value


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "runs import",
        "Import runs that another program recorded. Each folder with event files becomes a run.",
        "Importing a folder again adds what is new. The files are only read, and may be written at the same time.",
    )
    add = built.add_argument
    add("program", type=_program, metavar="tensorboard", help="The program that wrote the files")
    add("folder", type=Path, metavar="DIR", help="The folder with the files, at any depth: TensorBoard's --logdir")
    add_store(built)
    return built
