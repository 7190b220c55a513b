"""torchrun: restarts, rendezvous, workers, lost processes, and dropped telemetry."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from board import Board, Query
from expressions import growth, mean, of, or_zero, quantile, rate, total

_AGENT = 'code_function_name=~"(SimpleElastic|LocalElastic)Agent[.].+"'
_STATES = of("torchrun.state")


def torchrun(board: Board) -> Board:
    """Fill the dashboard."""
    board.row("Workers")
    board.numbers("Restarts", Query(of("torchrun.restarts"), "{{dl_run_id}} {{role}}"), height=5, width=6, alarm=1)
    board.numbers("Remaining restarts", Query(of("torchrun.remaining_restarts"), "{{role}}"), height=5, width=6)
    lost = total(of("tachograph.process.lost"), "dl_run_id", "dl_role")
    lost_help = "Processes that disappeared without an end event."
    board.numbers("Lost processes", Query(lost, "{{dl_role}}"), height=5, width=6, alarm=1, description=lost_help)
    flakiness = of("torchrun.flakiness")
    board.bars("Flakiness", Query(flakiness, "{{role}}"), unit="percent", low=0, high=100, height=5, width=6, alarm=100)
    board.states(
        "State of the worker group", Query(_STATES, "{{role}} {{state}}"), unit="bool_yes_no", width=12, on=True
    )
    workers = total(of("torchrun.worker.status"), "role", "state")
    board.lines("Worker events by state", Query(workers, "{{role}} {{state}}"), low=0, width=12)
    runs = (
        ("finished", "torchrun.run"),
        ("succeeded", "torchrun.run_success_no_retries"),
        ("succeeded after restarts", "torchrun.run_success_with_retries"),
        ("failed", "torchrun.run_failed_no_retries"),
        ("failed after restarts", "torchrun.run_failed_with_retries"),
    )
    board.bars("Runs", *(Query(total(of(name)), legend) for legend, name in runs), low=0)
    silent = f"time() - {of('tachograph.process.last_export')}"
    board.lines("Time since last export", Query(silent, "{{dl_role}} {{dl_rank}}"), unit="s", low=0)
    restarts = growth("torchrun.restarts")
    board.lines("Restarts in this time range", Query(restarts, "{{dl_run_id}} {{role}}"), low=0)
    board.row("torchrun durations")
    for title, name in (
        ("Rendezvous", "torchrun.rendezvous.duration"),
        ("Rank assignment", "torchrun.assign_worker_ranks.duration"),
    ):
        average = f"{of(name, suffix='_sum')} / {of(name, suffix='_count')}"
        board.lines(f"{title}: mean", Query(average, "{{dl_run_id}} {{role}}"), unit="s", low=0)
    calls = f"{of('function.duration', _AGENT, suffix='_sum')} / {of('function.duration', _AGENT, suffix='_count')}"
    board.lines("Agent functions: mean", Query(calls, "{{code_function_name}}"), unit="s", low=0)
    _telemetry(board)
    return board


def _telemetry(board: Board) -> None:
    board.row("Telemetry")
    dropped = total(rate("tachograph.dropped"), "reason", "destination")
    board.lines("Dropped", Query(dropped, "{{reason}} {{destination}}"), unit="cps", low=0)
    errors = or_zero(total(rate("tachograph.errors"), "where"))
    board.lines("Internal errors of Tachograph", Query(errors, "{{where}}"), unit="cps", low=0)
    nonfinite = total(rate("tachograph.nonfinite"), "metric")
    board.lines("NaN and infinite values", Query(nonfinite, "{{metric}}"), unit="cps", low=0)
    by = ("destination",)
    board.lines(
        "Export duration",
        Query(mean("tachograph.export.duration", by=by), "{{destination}}: mean"),
        Query(quantile(0.99, "tachograph.export.duration", by=by), "{{destination}}: p99"),
        unit="s",
        low=0,
    )
