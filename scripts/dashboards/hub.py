"""Hubs: data that they receive or reject, and processes that they have lost."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from board import Board, Query
from expressions import of, or_zero, rate, total

_HUB = ("instance",)


def hub(board: Board) -> Board:
    """Fill the dashboard."""
    board.row("Received")
    for title, name, unit in (
        ("Data points", "tachograph.hub.points", "cps"),
        ("Events", "tachograph.hub.events", "eps"),
    ):
        board.lines(title, Query(total(rate(name, who=""), *_HUB), "{{instance}}"), unit=unit, low=0)
    spans = or_zero(total(rate("tachograph.hub.spans", who=""), *_HUB))
    board.lines(
        "Spans",
        Query(spans, "{{instance}}"),
        unit="cps",
        low=0,
        description="The hub counts spans but does not store them.",
    )
    board.row("Problems")
    for title, name, labels, description in (
        ("Rejected requests", "tachograph.hub.refused", ("signal", "status"), "The response says why."),
        ("Internal errors", "tachograph.hub.failed", ("signal",), "See the log of the hub."),
        ("Duplicate events", "tachograph.hub.events.repeated", (), "The hub stores each event once."),
        ("Missing events", "tachograph.hub.events.missing", (), "From gaps in their numbers."),
        ("Events with a newer schema", "tachograph.hub.events.newer", (), "Stored but not interpreted."),
    ):
        legend = " ".join(f"{{{{{label}}}}}" for label in (*_HUB, *labels))
        expression = or_zero(total(rate(name, who=""), *_HUB, *labels))
        board.lines(title, Query(expression, legend), unit="cps", low=0, description=description)
    board.row("Processes")
    alive = f"count by (instance, dl_run_id) ({of('tachograph.process.last_export')})"
    board.lines("Processes per run", Query(alive, "{{instance}} {{dl_run_id}}"), low=0)
    lost = total(of("tachograph.process.lost"), "dl_run_id", "dl_role")
    lost_help = "Processes that disappeared without an end event."
    board.numbers("Lost processes", Query(lost, "{{dl_run_id}} {{dl_role}}"), alarm=1, description=lost_help)
    silent = f"time() - {of('tachograph.process.last_export')}"
    board.lines("Time since last export", Query(silent, "{{dl_run_id}} {{dl_role}} {{dl_rank}}"), unit="s", low=0)
    return board
