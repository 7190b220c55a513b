"""``tachograph diagnose``: verdicts, phases and goodput from a run's file, and hangs from its hub while it is live."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Parser,
    add_json,
    add_run,
    add_store,
    add_url,
    fail,
    parser,
    print_errors,
)
from tachograph.cli.diagnose.hangs import ask_hub, hang_lines, hub_of, stack_lines, stored_hangs
from tachograph.cli.hub_client import RefusedError, UnavailableError
from tachograph.diagnosis import CRITICAL, PHASES, Diagnosis, diagnose_run
from tachograph.identity.environment import clean, store
from tachograph.runs import (
    RunFile,
    find_ending,
    find_run,
    is_in_use,
    list_runs,
    look,
    printable,
    read_members,
    run_id_of,
)

HAS_FAULT = 3  # the exit code for a hang or a critical verdict


@print_errors("diagnose")
def command(arguments: Sequence[str]) -> int:
    """Print a diagnosis and return the exit code: 3 for a hang or a critical verdict, 1 without a hub, 2 for misuse."""
    options = build_parser().parse_args(arguments)
    try:
        found = _diagnose(options)
    except RefusedError as error:
        return fail("diagnose", str(error), WRONG_USAGE)
    except UnavailableError as error:
        return fail("diagnose", str(error), FAILED)
    if options.json:
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
    else:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines(found)))
    hang = (found["live"] or {}).get("open")
    is_hanging = bool(hang and hang["grade"] == "hang")
    is_critical = any(verdict["severity"] == CRITICAL for verdict in found["verdicts"])
    return HAS_FAULT if is_hanging or is_critical else 0


def _diagnose(options: argparse.Namespace) -> dict[str, Any]:
    """Return a run's verdicts, phases, goodput and hangs: live ones from its hub, all others from the store."""
    run = clean(options.run or "")
    if options.url:
        run, hangs = ask_hub(options.url, run)
    folder = options.store or store(os.environ)
    path = _path(run, folder) if not options.url or _has_run(run, folder) else None
    empty: dict[str, Any] = Diagnosis([], None, {}).data()
    judged = empty if path is None else _judged(path)
    if options.url:
        return {"run": run, **judged, **hangs}
    assert path is not None  # noqa: S101 - without --url the run was found in the store
    run = run_id_of(path)
    url = hub_of(run) if is_in_use(path) else None
    hangs = ask_hub(url, run)[1] if url else stored_hangs(path)
    return {"run": run, **judged, **hangs}


def _has_run(run: str, folder: Path) -> bool:
    try:
        find_run(run, folder)
    except (LookupError, OSError):
        return False
    return True


def _path(run: str, folder: Path) -> Path:
    """Return the file of a run, or of the newest one."""
    if run:
        return find_run(run, folder)
    runs = list_runs(folder)
    if not runs:
        raise LookupError(f"there is no run in {folder} yet; record one with 'tachograph run -- python train.py'")
    return runs[-1].path


def _judged(path: Path) -> dict[str, Any]:
    now = time.time_ns()
    written = is_in_use(path)
    with look(RunFile(path)) as reading:
        is_running = find_ending(reading, read_members(reading), now, written=written).state == "running"
        return diagnose_run(reading, now if is_running else 0, recent=is_running).data()


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield a diagnosis as text."""
    yield f"run {found['run']}"
    yield from hang_lines(found)
    yield ""
    yield from _step_lines(found)
    yield from stack_lines(found)


def _step_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what is known about the run's steps: verdicts, phases by rank, goodput."""
    if found["goodput"] is None:
        yield "no training steps were recorded: Tachograph times only steps that call a torch.optim optimizer"
        return
    for verdict in found["verdicts"]:
        yield f"{verdict['severity']}: {verdict['line']}"
    if not found["verdicts"]:
        yield "no problem found in its steps"
    slowest = max(found["stragglers"], key=lambda rank: found["stragglers"][rank], default=None)
    if slowest is not None:
        yield f"slowest rank {slowest}: {found['stragglers'][slowest]:+.1%} of a step compared with the others"
    if found["phases"]:
        yield ""
        yield from _phase_table(found["phases"])
    yield ""
    yield found["goodput"]["line"]


def _phase_table(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each rank: the time of a step, and of each phase with its share of the step."""
    phases = [phase for phase in PHASES if any(rank["phase_seconds"].get(phase) for rank in ranks)]
    rows = [["rank", "steps", "step", *phases]]
    for rank in ranks:
        seconds = rank["step_seconds"]
        cells = ["-" if rank["rank"] is None else str(rank["rank"]), f"{rank['steps']:,}", f"{seconds * 1e3:.1f} ms"]
        for phase in phases:
            part = rank["phase_seconds"].get(phase, 0.0)
            cells.append(f"{part * 1e3:.1f} ms {part / seconds:4.0%}" if seconds else "-")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def build_parser() -> Parser:
    """Return the parser of the command."""
    built = parser(
        "diagnose",
        "Explain why a run is slow, where the time of its steps goes, and which rank hangs, with the stacks of all "
        "ranks if the run is live. The exit code is 3 for a hang or a critical verdict.",
        "TACHOGRAPH_HUB_TOKEN has the token of a hub on another machine.",
    )
    add_run(built, default="the newest run")
    add_url(built, "Ask the hub at this address (default: the run's own hub)")
    add_store(built)
    add_json(built, "Print one JSON object")
    return built
