"""Hubs: what they take in, what they refuse, and whom they have lost."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from board import Board, Query
from expressions import of, or_zero, rate, total

_HUB = ("instance",)


def hub(board: Board) -> Board:
    """Fill the dashboard."""
    board.row("Coming in")
    for title, name, unit in (
        ("Data points", "tachograph.hub.points", "cps"),
        ("Events", "tachograph.hub.events", "eps"),
    ):
        board.lines(title, Query(total(rate(name, who=""), *_HUB), "{{instance}}"), unit=unit, low=0)
    spans = or_zero(total(rate("tachograph.hub.spans", who=""), *_HUB))
    board.lines("Spans", Query(spans, "{{instance}}"), unit="cps", low=0, about="A hub counts them, and keeps none.")
    board.row("Trouble")
    for title, name, labels, about in (
        ("Refused requests", "tachograph.hub.refused", ("signal", "status"), "The sender was told why."),
        ("Failures of the hub", "tachograph.hub.failed", ("signal",), "Its log says what failed."),
        ("Events that came twice", "tachograph.hub.events.repeated", (), "They are stored once."),
        ("Events that never came", "tachograph.hub.events.missing", (), "By gaps in their numbers."),
        ("Events of a newer version", "tachograph.hub.events.newer", (), "They are stored, and not looked into."),
    ):
        legend = " ".join(f"{{{{{label}}}}}" for label in (*_HUB, *labels))
        expression = or_zero(total(rate(name, who=""), *_HUB, *labels))
        board.lines(title, Query(expression, legend), unit="cps", low=0, about=about)
    board.row("Processes")
    alive = f"count by (instance, dl_run_id) ({of('tachograph.process.last_export')})"
    board.lines("Processes of each run", Query(alive, "{{instance}} {{dl_run_id}}"), low=0)
    lost = total(of("tachograph.process.lost"), "dl_run_id", "dl_role")
    board.numbers("Lost processes", Query(lost, "{{dl_run_id}} {{dl_role}}"), alarm=1)
    silent = f"time() - {of('tachograph.process.last_export')}"
    board.lines("Silent for", Query(silent, "{{dl_run_id}} {{dl_role}} {{dl_rank}}"), unit="s", low=0)
    return board
