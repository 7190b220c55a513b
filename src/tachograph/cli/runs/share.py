"""``tachograph runs share``: a run's page as one file that needs no server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph.cli.command_line import Parser, add_run, add_store, parser, print_errors
from tachograph.identity.environment import store
from tachograph.identity.run_id import file_safe
from tachograph.runs.export import printable, size_of


@print_errors("runs share")
def command(arguments: Sequence[str]) -> int:
    """Write the page, and return the exit code: 2 for wrong usage."""
    options = build_parser().parse_args(arguments)
    from tachograph.studio.share import shared_page  # it loads the server's libraries

    output: Path = options.output or Path(f"{file_safe(options.run)}.html")
    if output.exists() and not options.force:
        raise FileExistsError(f"{output} exists; use --force to replace it")
    page = shared_page(options.store or store(os.environ), options.run).encode()
    _write_whole(output, page, replace=options.force)
    sys.stderr.write(f"tachograph: wrote {printable(str(output))} ({size_of(len(page))})\n")
    return 0


def _write_whole(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file completely, or leave none.

    Raises:
        OSError: it cannot be written; ``FileExistsError`` if it exists and must not be replaced.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        if not replace:
            path.touch(exist_ok=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser("runs share", "Write a run's page as one HTML file that opens without a server or a network.")
    add_run(built)
    add = built.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="The file to write (default: RUN.html)")
    add("--force", action="store_true", help="Replace the file if it exists")
    add_store(built)
    return built
