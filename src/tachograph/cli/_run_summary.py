"""The last lines of ``tachograph run``: how the job ended, what was recorded, what was lost, and why it was slow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tachograph.identity.program import Undelivered, signal_name

_MOST_LISTED = 4  # processes, reasons of losses, verdicts
_LEAST_GOODPUT = 180  # seconds: most of a shorter run is start-up


def describe_status(status: int) -> str:
    """Return how the job ended: ``finished``, ``failed (exit code 3)``, ``killed (SIGKILL)``."""
    if status < 0:
        return f"killed ({signal_name(-status)})"
    return f"failed (exit code {status})" if status else "finished"


def summary_lines(
    summary: Mapping[str, Any],
    undelivered: Sequence[Undelivered],
    status: int,
    store: Path | None,
) -> Iterator[str]:
    """Yield the process that failed first, the reasons of losses, a line about the whole run, and its diagnosis.

    Args:
        summary: the hub's; empty if it reported none.
        undelivered: what processes had not delivered when they ended.
        status: how the job ended.
        store: the folder of the run, if it is not the usual one.
    """
    from tachograph.runs import (
        Loss,
        describe_losses,
        loss_name,
        printable,  # these imports would delay the job
    )

    studio = ["tachograph", "studio", *(["--store", str(store)] if store is not None else ())]
    undelivered_clause = [_describe_undelivered(undelivered)] if undelivered else []
    see_again = f"see it again with '{shlex.join(studio)}'"
    if not summary:
        no_summary = f"{describe_status(status)}: the hub did not report what it recorded"
        yield "; ".join([no_summary, *undelivered_clause, see_again])
        return
    failure = (summary.get("ended") or {}).get("failure")
    if failure:
        yield printable(_describe_failure(failure))
    losses = [Loss(loss["reason"], loss["destination"], loss["points"]) for loss in summary.get("losses", ())]
    for loss in losses[:_MOST_LISTED]:
        line = f"lost {_count(loss.points, 'point')} ({loss_name(loss.reason, loss.destination)})"
        why = loss.why.replace("`", "")
        yield f"{line}: {why[0].lower()}{why[1:]}" if why else line
    missing = [_describe_lost_process(process) for process in summary.get("lost", [])]
    unheard = summary.get("unheard") or {}
    if unheard.get("processes"):
        missing.append(_describe_unheard(unheard["processes"], unheard["first"]))
    lost = f", lost: {describe_losses(losses)}" if losses else "" if undelivered else ", none lost"
    if missing and lost:
        lost += ", as far as known"  # a process that is missing did not report its losses
    diagnosis = summary.get("diagnosis") or {}
    points = _count(summary["points"], "point")
    if not summary["points"] and diagnosis.get("goodput"):  # a program that logs nothing
        points = "the phases of its steps"
    events = summary.get("user_events", 0)
    counted = f"{points} and {_count(events, 'event')}" if events else points
    recorded = f"{describe_status(status)}: recorded {counted}{lost}"
    deleted = [f"{path} was deleted during the run" for path in summary.get("deleted", [])]
    yield "; ".join([recorded, *missing, *undelivered_clause, *deleted, see_again])
    yield from diagnosis_lines(diagnosis)


def diagnosis_lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about the goodput of a run that took a few minutes, and one line for each verdict."""
    goodput = dict(diagnosis.get("goodput") or {})
    line = goodput.pop("line", "")
    if sum(goodput.values()) >= _LEAST_GOODPUT:
        yield line
    for verdict in diagnosis.get("verdicts", ())[:_MOST_LISTED]:
        yield verdict["line"]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _describe_failure(fields: Mapping[str, Any]) -> str:
    from tachograph.runs import Failure

    failure = Failure(**{name: fields[name] for name in Failure._fields})
    return f"{failure.process} failed first: {failure}" if failure.process else f"the program failed: {failure}"


def _describe_lost_process(process: Mapping[str, Any]) -> str:
    rank = process.get("rank")
    name = f"rank {rank}" if rank not in (None, "") else f"the {process.get('role') or 'process'}"
    last_export = datetime.fromisoformat(process["last_export"]).astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{name} was lost (last export at {last_export})"


def _describe_unheard(count: int, first: Sequence[Mapping[str, Any]]) -> str:
    names = [_process_name(process["rank"], process["program"], process["pid"]) for process in first]
    return f"{_list_names(names, count)} started but never reported"


def _describe_undelivered(processes: Sequence[Undelivered]) -> str:
    """Return which processes ended before everything was delivered to the hub, and how much was not."""
    names = [_process_name(process.rank, process.program, process.pid) for process in processes[:_MOST_LISTED]]
    given_up = sum(process.given_up for process in processes)
    unanswered = sum(process.unanswered for process in processes)
    amounts = [f"{given_up:,} undelivered items"] if given_up else []
    amounts += [f"{unanswered:,} items that the hub did not acknowledge"] if unanswered else []
    return f"{_list_names(names, len(processes))} ended with {' and '.join(amounts)}"


def _list_names(names: Sequence[str], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{', '.join(names)}{more}"


def _process_name(rank: int | None, program: str, pid: int) -> str:
    name = program or "a process" if rank is None else f"rank {rank}"
    return f"{name} (pid {pid})"
