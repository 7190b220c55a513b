"""``tachograph runs``: its command line."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser, reason
from tachograph.identity.resource import store
from tachograph.runs.annotations import annotate, change_of
from tachograph.runs.catalogue import (
    Summary,
    delete,
    files_of,
    listed,
    located,
    opened,
    superfluous,
)
from tachograph.runs.columns import FACTS, chosen, columns_table, json_line
from tachograph.runs.export import listing, printable, shown, size_of, write_jsonl
from tachograph.runs.filter import FilterError

IN_USE = "a hub writes it, it stays"
_ANNOTATED = {"tag": "tags", "note": "notes", "name": "name"}  # commands, and what each of them changes
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def command(arguments: Sequence[str]) -> int:
    """List, show, annotate or delete runs, and return the exit code: 1 where that failed in part, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        commands = {"list": _list, "show": _show, "share": _share, "prune": _prune, "delete": _delete_named}
        return commands.get(options.what, _annotate)(options)
    except FilterError as error:
        pointed = f"  {printable(options.filter)}\n  {' ' * error.position}^"
        return fail("runs", f"--filter: {printable(str(error))}\n{pointed}", WRONG_USAGE)
    except (LookupError, ValueError, OSError) as error:
        return fail("runs", printable(reason(error)), WRONG_USAGE)


def _list(options: argparse.Namespace) -> int:
    wanted = set(options.tag)
    stored = listed(options.store)
    runs = [each for each in stored if wanted <= set(each.tags)]
    columns = options.columns or (FACTS if options.json else ())
    sort = options.sort or ("start" if options.reverse else None)
    found = chosen(runs, columns, wanted=options.filter, sort=sort, reverse=options.reverse)
    if options.json:
        write_jsonl((json_line(row) for _, row in found), sys.stdout)
    elif not found:
        none = f"none of the {len(stored):,} runs is one of these" if stored else "there are no runs"
        sys.stdout.write(f"{none} in {printable(str(options.store or store(os.environ)))}\n")
    else:
        sys.stdout.write(columns_table([row for _, row in found]) if columns else listing([run for run, _ in found]))
    return 0


def _show(options: argparse.Namespace) -> int:
    run = opened(options.run, options.store)
    sys.stdout.write(shown(run))
    if run.damage:
        return fail("runs", f"{run.path} is damaged: {run.damage[0]}", FAILED)
    return 0


def _share(options: argparse.Namespace) -> int:
    from tachograph.studio.share import shared_page  # it takes the server's libraries along

    if options.output.exists() and not options.force:
        return fail(
            "runs", f"{printable(str(options.output))} is there already: --force writes in its place", WRONG_USAGE
        )
    page = shared_page(options.store or store(os.environ), options.run).encode()
    _write_whole(options.output, page, replace=options.force)
    sys.stderr.write(f"tachograph: {printable(str(options.output))} has the run, {size_of(len(page))}\n")
    return 0


def _write_whole(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file that is there whole, or not at all.

    Raises:
        OSError: it cannot be written; ``FileExistsError`` where it is there, and is not to be replaced.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        if not replace:
            path.touch(exist_ok=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _prune(options: argparse.Namespace) -> int:
    if options.older_than is options.keep is options.max_size is None:
        return fail("runs", "say which runs shall go: --older-than, --keep or --max-size", WRONG_USAGE)
    rules = {"older": options.older_than, "keep": options.keep, "size": options.max_size}
    gone = superfluous(listed(options.store), time.time_ns(), **rules)
    if not gone:
        sys.stdout.write("no run is to go\n")
        return 0
    sys.stdout.write(listing(gone))
    if not options.yes and not _agreed(gone):
        return WRONG_USAGE
    return _delete(gone)


def _agreed(gone: Sequence[Summary]) -> bool:
    if not sys.stdin.isatty():
        fail("runs", "nobody is there to be asked whether to delete these runs: give --yes", WRONG_USAGE)
        return False
    many = f"{len(gone)} run{'s' * (len(gone) > 1)}, {size_of(sum(each.size for each in gone))}"
    sys.stdout.write(f"Delete {many}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete(gone: Sequence[Summary]) -> int:
    stays = {each.path: why for each in gone if (why := _why_it_stays(each))}
    for path, why in stays.items():
        fail("runs", f"{path}: {why}", FAILED)
    size = size_of(sum(each.size for each in gone if each.path not in stays))
    sys.stdout.write(f"deleted: {len(gone) - len(stays)}, {size}\n")
    return FAILED if stays else 0


def _delete_named(options: argparse.Namespace) -> int:
    """Delete each run that is named, and say so; those that cannot be deleted keep no other one."""
    code = 0
    for name in dict.fromkeys(options.runs):
        try:
            path = located(name, options.store or store(os.environ))
            size = sum(each.stat().st_size for each in files_of(path) if each.exists())
            why = "" if delete(path) else f"{path}: {IN_USE}"
        except (LookupError, OSError) as error:
            why = reason(error)
        if why:
            code = fail("runs", printable(why), FAILED)
        else:
            sys.stdout.write(f"deleted: {printable(name)}, {size_of(size)}\n")
    return code


def _annotate(options: argparse.Namespace) -> int:
    """Change tags, notes or name of a run, and print them as they are now."""
    given = {key: value for key, value in vars(options).items() if key in ("add", "remove", "notes", "name")}
    if options.what == "tag" and not options.add and not options.remove:
        raise ValueError("say which tags: --add NAME, --remove NAME")
    try:
        change = change_of(**given)
    except ValueError as error:
        option = "--" if options.what == "tag" else ""
        raise ValueError(re.sub(r"^(\w+)=", rf"{option}\1", str(error))) from None
    run = opened(options.run, options.store)
    for tag in change.remove:
        if tag not in run.tags:
            near = get_close_matches(tag, run.tags, n=1) or run.tags
            raise LookupError(f"the run {run.id!r} has no tag {tag!r}: it has {', '.join(map(repr, near)) or 'none'}")
    annotate(run.path, change)
    said = {"tag": ", ".join(run.tags), "note": run.notes, "name": run.name}[options.what]
    lines = f"{_ANNOTATED[options.what]}: {said or '-'}".split("\n")
    sys.stdout.write("".join(f"{printable(line.expandtabs())}\n" for line in lines))
    return 0


def _why_it_stays(run: Summary) -> str:
    """Delete a run; return why it could not be deleted, or nothing."""
    try:
        return "" if delete(run.path) else IN_USE
    except FileNotFoundError:  # and so it is gone
        return ""
    except OSError as error:
        return str(error.strerror)


def _parser() -> argparse.ArgumentParser:
    parsed = parser("runs", "The runs that hubs have recorded on this machine.")
    commands = parsed.add_subparsers(dest="what", metavar="COMMAND", required=True)
    about = {"list": "list them, the oldest first", "show": "show one", "prune": "delete those that are not needed"}
    about |= {"delete": "delete these", "tag": "add and remove tags of one", "note": "give one notes"}
    about |= {"name": "give one a name for display; its id stays"}
    about |= {"share": "write one as a page that needs no server"}
    made = {name: commands.add_parser(name, help=line, allow_abbrev=False) for name, line in about.items()}
    for each in made.values():
        each.add_argument("--store", type=Path, metavar="DIR", help="where runs are kept (default: TACHOGRAPH_STORE)")
    tagged = "only those with this tag; of several options a run has all"
    add = made["list"].add_argument
    add("--tag", action="append", default=[], metavar="NAME", help=tagged)
    chosen_from = f"of {', '.join(FACTS)}, config.KEY, summary.KEY and program.KEY"
    like = "only those for which it holds, such as 'loss < 0.3 lr > 1e-4 tag:sweep -state:failed text'"
    add("--filter", metavar="FILTER", default="", help=like)
    add("--columns", type=_columns, metavar="COLUMN,...", help=chosen_from)
    add("--sort", metavar="COLUMN", help="any column, shown or not; runs without a value come last (default: start)")
    add("--reverse", action="store_true", help="the largest first")
    add("--json", action="store_true", help="a JSON object a line")
    for name in ("show", "share", *_ANNOTATED):
        made[name].add_argument("run", metavar="RUN", help="the run's id")
    made["share"].add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html", help="the page")
    made["share"].add_argument("--force", action="store_true", help="write it in place of a file that is there")
    made["delete"].add_argument("runs", nargs="+", metavar="RUN", help="the run's id")
    for name in ("add", "remove"):
        line = f"{name} this tag; may be repeated"
        made["tag"].add_argument(f"--{name}", action="append", default=[], metavar="NAME", help=line)
    made["note"].add_argument("notes", metavar="TEXT", help="in place of the notes that it has; '' for none")
    made["name"].add_argument("name", metavar="NAME", help="'' for none")
    add = made["prune"].add_argument
    add("--older-than", type=_age, metavar="AGE", help="runs into which nothing came for so long: 30d, 12h, 90m")
    add("--keep", type=_count, metavar="N", help="all but the N newest")
    add("--max-size", type=_size, metavar="SIZE", help="the oldest, until the others take no more: 10G, 500M")
    add("--yes", action="store_true", help="do not ask")
    return parsed


def _columns(given: str) -> list[str]:
    found = [name.strip() for name in given.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"columns are names with commas between them, not {given!r:.100}")
    return list(dict.fromkeys(found))


def _age(given: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", given)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"an age is a number with one of s, m, h, d, w, such as 30d, not {given!r:.100}"
        )
    return float(found[1]) * _SECONDS[found[2]]


def _count(given: str) -> int:
    if not re.fullmatch(r"\d{1,9}", given):
        raise argparse.ArgumentTypeError(f"how many to keep is a number from 0 on, not {given!r:.100}")
    return int(given)


def _size(given: str) -> int:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)(?:i?B)?", given)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number of bytes, or such as 500M or 10G, not {given!r:.100}")
    return int(float(found[1]) * _BYTES[found[2]])
