"""The hangs of a run: who waits for whom, and where each thread of each rank is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tachograph.cli.hub_client import HubClient, RefusedError, UnavailableError
from tachograph.runs.file import RunFile, look
from tachograph.studio.occurrences import incidents


def ask_hub(url: str, run: str) -> tuple[str, dict[str, Any]]:
    """Return the run and its hangs as a hub knows them.

    Args:
        url: the hub's address.
        run: the run's id; empty for the hub's own.

    Raises:
        UnavailableError: the hub does not answer.
        RefusedError: it does not know the run, or the token is wrong.
    """
    hub = HubClient(url)
    try:
        run = run or str(hub.get("/api/runs")["run"])
        return run, hub.get(f"/api/runs/{quote(run, safe='')}/doctor")
    finally:
        hub.close()


def hub_of(run: str) -> str | None:
    """Return the address of the hub on this machine whose own run this is; None if none answers."""
    hub = HubClient()
    try:
        return hub.url if hub.get("/api/runs")["run"] == run else None
    except (UnavailableError, RefusedError):
        return None
    finally:
        hub.close()


def stored_hangs(path: Path) -> dict[str, Any]:
    """Return the hangs of a run that its file has."""
    with look(RunFile(path)) as reading:
        return {"live": None, "incidents": incidents(reading)}


def hang_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hangs of a run as text: the present one, the ranks and their stacks, then past ones."""
    live = found["live"]
    if live is not None:
        hang = live["open"]
        yield _verdict(hang) if hang else "no hang: the ranks are making progress"
        yield from live["elsewhere"] if not hang else ()
        yield from _table(live["ranks"])
    past = [each for each in found["incidents"] if each["ended"] or live is None]
    if past:
        yield ""
    for each in past:
        at = datetime.fromtimestamp(each["began"] / 1e9, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
        lasted = f", ended after {(each['ended'] - each['began']) / 1e9:.0f} s" if each["ended"] > each["began"] else ""
        yield f"{at}{lasted}: {each['text']}"


def stack_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stacks of all threads of all ranks, while a run is live."""
    for rank in (found["live"] or {}).get("ranks", ()):
        for name, stack in rank["stacks"]:
            yield ""
            yield f"rank {rank['rank']} (pid {rank['pid']} on {rank['host']}), thread {name}:"
            yield from (f"  {line}" for line in stack)


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
