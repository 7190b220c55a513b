"""Functions: calls, durations and failures of functions profiled with ``@prof``, ``--prof`` or torchelastic."""
# ruff: noqa: INP001 - modules of one program: python scripts/dashboards

from __future__ import annotations

from board import Board, Query
from expressions import mean, of, quantile, rate, total

from tachograph.cli.dashboards.panel import WHO, selector

_CHOSEN = 'code_function_name=~"$function"'
_BY = ("code_function_name",)
_NAME = "{{code_function_name}}"


def functions(board: Board) -> Board:
    """Fill the dashboard."""
    query = f"label_values({selector('function_calls_total', WHO)}, code_function_name)"
    board.choice("function", "Function", query)
    calls = total(rate("function.calls", _CHOSEN), *_BY)
    failed = total(rate("function.calls", _CHOSEN, 'outcome="failure"'), *_BY)
    board.row("All calls")
    board.lines("Calls", Query(calls, _NAME), unit="cps", low=0)
    board.lines("Failure rate", Query(f"{failed} / {calls}", _NAME), unit="percentunit", low=0, high=1)
    errors = total(rate("function.calls", _CHOSEN, 'outcome="failure"'), *_BY, "error_type")
    board.lines("Failures by error type", Query(errors, f"{_NAME} {{{{error_type}}}}"), unit="cps", low=0)
    board.row("Durations")
    board.lines("Mean duration", Query(mean("function.duration", _CHOSEN, by=_BY), _NAME), unit="s", low=0)
    for share in (0.5, 0.99):
        expression = quantile(share, "function.duration", _CHOSEN, by=_BY)
        board.lines(f"p{share * 100:g} duration", Query(expression, _NAME), unit="s", low=0)
    board.row("Time per function")
    spent = total(rate("function.duration", _CHOSEN, suffix="_sum"), *_BY)
    board.lines(
        "Total time per second",
        Query(spent, _NAME),
        unit="percentunit",
        low=0,
        description="Summed over all ranks. 100 % means that one rank is always in this function.",
    )
    by_rank = mean("function.duration", _CHOSEN, by=(*_BY, "dl_rank"))
    board.lines("Mean by rank", Query(by_rank, f"{_NAME} {{{{dl_rank}}}}"), unit="s", low=0)
    all_calls = total(of("function.calls", _CHOSEN), *_BY, "outcome")
    board.bars("Total calls", Query(all_calls, f"{_NAME} {{{{outcome}}}}"), low=0)
    return board
