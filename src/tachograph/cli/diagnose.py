"""``tachograph diagnose RUN``: the reasons for which a run is slow, and where its time went."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.cli._command_line import WRONG_USAGE, fail, parser, reason
from tachograph.diagnosis.verdict import CRITICAL
from tachograph.diagnosis.verdict_run import Diagnosis, diagnosis
from tachograph.runs.catalogue import listed, located
from tachograph.runs.ending import ending
from tachograph.runs.export import printable
from tachograph.runs.file import RunFile, look
from tachograph.runs.file_lock import in_use
from tachograph.runs.members import members

IS_CRITICAL = 3


def command(arguments: Sequence[str]) -> int:
    """Print a run's verdicts and its goodput, and return the exit code: 3 where one is critical, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        found = _diagnosed(_path(options))
    except (LookupError, ValueError, OSError) as error:
        return fail("diagnose", printable(reason(error)), WRONG_USAGE)
    if options.json:
        sys.stdout.write(json.dumps(found.data(), allow_nan=False) + "\n")
    else:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines(found)))
    return IS_CRITICAL if any(each.severity == CRITICAL for each in found.verdicts) else 0


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "diagnose",
        "Say why a run is slow, and where its time went. The exit code is 3 where a verdict is critical.",
        "Every step of a job under `tachograph run` is split into phases: see docs/anatomy.md.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", help="the run's id; by default the newest run")
    made.add_argument("--store", type=Path, metavar="DIR", help="the folder with the runs")
    made.add_argument("--json", action="store_true", help="write one JSON object")
    return made


def _path(options: argparse.Namespace) -> Path:
    runs = listed(options.store)
    if options.run is None and not runs:
        raise LookupError("there is no run yet: tachograph run -- python train.py records one")
    if options.run is None:
        return runs[-1].path
    return next((each.path for each in runs if each.id == options.run), None) or located(
        options.run, options.store or (runs[0].path.parent.parent if runs else Path())
    )


def _diagnosed(path: Path) -> Diagnosis:
    now, written = time.time_ns(), in_use(path)
    with look(RunFile(path)) as reading:
        goes_on = ending(reading, members(reading), now, written=written).state == "running"
        return diagnosis(reading, now if goes_on else 0, recent=goes_on)


def lines(found: Diagnosis) -> list[str]:
    """Return a diagnosis for people."""
    if found.goodput is None:
        return ["no training step was recorded: only programs that step an optimizer of torch have some"]
    said = [f"{each.severity}: {each.line()}" for each in found.verdicts] or ["nothing to say against its steps"]
    slowest = max(found.scores, key=lambda rank: found.scores[rank], default=None)
    if slowest is not None:
        said.append(f"slowest rank {slowest}: {found.scores[slowest]:+.1%} of a step against the others")
    return [*said, found.goodput.line()]
