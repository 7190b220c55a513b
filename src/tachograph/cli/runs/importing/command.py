"""``tachograph runs import``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tachograph.cli.command_line import FAILED, WRONG_USAGE, Parser, add_store, fail, parser, reason
from tachograph.cli.runs.importing.log_folders import LogFolder, log_folders
from tachograph.cli.runs.importing.progress import Progress
from tachograph.cli.runs.importing.tensorboard import Imported, imported
from tachograph.exporters.event_file import MOST_BYTES, Unread
from tachograph.identity.environment import store
from tachograph.runs.export import printable
from tachograph.runs.store import StoreError

_MIB = 2**20


def command(arguments: Sequence[str]) -> int:
    """Import runs, and return the exit code: 1 where a part could not be read, 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    root = Path(os.path.abspath(options.folder))  # noqa: PTH100 - resolve() would follow a link, and lose its name
    if not root.is_dir():
        return fail("runs import", _missing(root), WRONG_USAGE)
    code = 0

    def failed(error: OSError) -> None:
        nonlocal code
        code = fail("runs import", printable(reason(error)), FAILED)

    folders = log_folders(root, failed)
    if not folders and not code:
        why = f"{root} has no TensorBoard event files (their names contain 'tfevents')"
        return fail("runs import", printable(why), WRONG_USAGE)
    for folder in folders:
        progress = Progress(folder.name)
        try:
            found = imported(folder, options.store or store(os.environ), progress)
        except StoreError as error:
            progress.clear()
            return fail("runs import", printable(reason(error)), WRONG_USAGE)
        except OSError as error:
            progress.clear()
            failed(error)
            continue
        progress.clear()
        if found is None:
            sys.stdout.write(printable(f"{folder.name}: empty so far") + "\n")
        else:
            code = _say(folder, found) or code
    return code


def _missing(path: Path) -> str:
    """Return why a path is no folder to be read; the nearest one is named."""
    if path.exists():
        return printable(f"{path} is not a folder; name the folder that contains it")
    above = path.parent
    names = [each.name for each in above.iterdir() if each.is_dir()] if os.access(above, os.R_OK) else []
    near = get_close_matches(path.name, names, n=1)
    hint = f"did you mean {above / near[0]}?" if near else "name the folder that you pass to TensorBoard as --logdir"
    return printable(f"no such folder: {path}: {hint}")


def _say(folder: LogFolder, found: Imported) -> int:
    """Say the result of an import; return the exit code."""
    told = [f"{found.points:,} points"]
    if found.histograms:
        told.append(f"{found.histograms:,} histograms")
    if found.points:
        told[-1] += " (all new)" if found.new == found.points else f" ({found.new:,} points new)"
    sys.stdout.write(printable(f"{folder.name}: run {found.run}: {', '.join(told)}") + "\n")
    if found.not_taken:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(found.not_taken.items()))
        sys.stderr.write(
            printable(f"tachograph runs import: {folder.name}: skipped, because they are not curves: {kinds}") + "\n"
        )
    code = 0
    for path, unread in found.unread.items():
        code = max(code, _say_unread(path, unread))
    return code


def _say_unread(path: Path, unread: Unread) -> int:
    if unread.cut_off:
        why = "it ends within a record; import it again when more has been written"
        fail("runs import", printable(f"{path}: skipped {unread.cut_off:,} bytes: {why}"), 0)
    if unread.too_large:
        fail(
            "runs import", printable(f"{path}: skipped {unread.too_large:,} records above {MOST_BYTES // _MIB} MiB"), 0
        )
    if not unread.damaged:
        return FAILED if unread.too_large else 0
    return fail(
        "runs import",
        printable(f"{path} is damaged in {unread.damaged:,} places; everything else was imported"),
        FAILED,
    )


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
