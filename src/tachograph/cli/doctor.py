"""``tachograph doctor [RUN]``: who waits for whom in a job, and where each thread of each rank stands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tachograph.cli._command_line import FAILED, WRONG_USAGE, fail, parser
from tachograph.cli.top.command import DEFAULT_HUB, HUB, default_hub
from tachograph.cli.top.source import TOKEN, Asking, Away, HubRefused
from tachograph.identity.environment import clean, text
from tachograph.identity.resource import store
from tachograph.runs.catalogue import listed, located
from tachograph.runs.export import printable
from tachograph.runs.file import RunFile, look
from tachograph.runs.store import path_of
from tachograph.studio.occurrences import incidents

HANGS = 3  # the exit code where a job stands still


def command(arguments: Sequence[str]) -> int:
    """Show a job's ranks; return 3 where it stands still, 1 where no hub answers, 2 for wrong usage, else 0."""
    options = _parser().parse_args(arguments)
    try:
        found = _live(options) if options.store is None else _stored(options.run, options.store)
    except HubRefused as error:
        return fail("doctor", printable(str(error)), WRONG_USAGE)
    except Away as error:
        more = "tachograph doctor RUN shows the hangs of a run that has ended"
        return fail("doctor", f"{printable(str(error))}; {more}", FAILED)
    except (LookupError, ValueError, OSError) as error:
        return fail("doctor", printable(str(error.args[0] if error.args else error)), WRONG_USAGE)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines(found)))
    lasting = (found["live"] or {}).get("open")
    return HANGS if lasting and lasting["grade"] == "hang" else 0


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "doctor",
        "Show who waits for whom in a job, and the stacks of all its ranks. The exit code is 3 where it stands still.",
        f"It asks the hub of the job. Beyond loopback that wants its token: set {TOKEN}. See docs/hangs.md.",
    )
    add = made.add_argument
    add("run", metavar="RUN", nargs="?", help="the run's id (default: the hub's own)")
    add("--url", metavar="URL", help=f"of the hub (default: {HUB}, else {DEFAULT_HUB})")
    add("--store", type=Path, metavar="DIR", help="the hangs of a stored run instead: no hub is needed")
    add("--json", action="store_true", help="write one JSON object")
    return made


def _live(options: argparse.Namespace) -> dict[str, Any]:
    """Return the answer of a hub; without one that knows the run, that of the store."""
    asking = Asking(options.url or default_hub(), text(os.environ, TOKEN) or None)
    run = clean(options.run or "")
    try:
        run = run or str(asking.get("/api/runs")["run"])
        return {"run": run, **asking.get(f"/api/runs/{quote(run, safe='')}/doctor")}
    except (Away, HubRefused):  # another job may have its hub there
        if not options.run or options.url or not path_of(store(os.environ), run).is_file():
            raise
        return _stored(run, store(os.environ))
    finally:
        asking.close()


def _stored(run: str | None, folder: Path) -> dict[str, Any]:
    if run is None:
        runs = listed(folder)
        if not runs:
            raise LookupError(f"there is no run in {folder}")
        run = runs[-1].id
    with look(RunFile(located(run, folder))) as reading:
        return {"run": run, "live": None, "incidents": incidents(reading)}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield an answer of the hub for people."""
    live = found["live"]
    if live is None:
        yield f"{found['run']}: no rank has a process group of torch.distributed now"
    else:
        lasting = live["open"]
        yield f"{found['run']}: {_verdict(lasting) if lasting else 'it gets on'}"
        yield from live["elsewhere"] if not lasting else ()
        yield from _table(live["ranks"])
        for rank in live["ranks"]:
            for name, stack in rank["stacks"]:
                yield ""
                yield f"rank {rank['rank']} (pid {rank['pid']} on {rank['host']}), thread {name}:"
                yield from (f"  {line}" for line in stack)
    past = [each for each in found["incidents"] if each["ended"] or live is None]
    if past:
        yield ""
    for each in past:
        at = datetime.fromtimestamp(each["began"] / 1e9).astimezone().isoformat(sep=" ", timespec="seconds")
        lasted = f", over after {(each['ended'] - each['began']) / 1e9:.0f} s" if each["ended"] > each["began"] else ""
        yield f"{at}{lasted}: {each['text']}"


def _verdict(incident: Mapping[str, Any]) -> str:
    return f"{'HANG' if incident['grade'] == 'hang' else incident['grade']}: {incident['text']}"


def _table(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [("rank", "state", "for", "line", "operation")]
    rows += [
        (str(each["rank"]), each["state"], f"{each['seconds']:.0f} s", each["line"], each["operation"] or "-")
        for each in ranks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip()
