"""Choices of ``tachograph top``: filters, orders, and which rank is an outlier."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.cli.top.choice import SORTS, Choice, PatternError, compile_filter, outlier_check
from tachograph.cli.top.plots import draw_plots
from tachograph.cli.top.state import CurveLine, MetricRow


def row(metric: str, *ranks: list[float], group: str = "", rate: float | None = None) -> MetricRow:
    """Return a metric whose ranks have these newest values."""
    lines = [CurveLine(number, len(values), rate, values, len(values) - 1.0) for number, values in enumerate(ranks)]
    return MetricRow(group, metric, "", "", lines)


ROWS = [
    row("lr", [0.5], group="train"),
    row("Loss", [1.0], [9.0], rate=1.0),
    row("acc", [2.0], [nan], rate=5.0),
    row("empty", []),
]


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("chart", ["lr", "Loss", "acc", "empty"]),
        ("name", ["acc", "empty", "Loss", "lr"]),
        ("value", ["acc", "Loss", "lr", "empty"]),
        ("spread", ["acc", "Loss", "lr", "empty"]),
        ("rate", ["acc", "Loss", "lr", "empty"]),
    ],
)
def test_orders(sort: str, wanted: list[str]) -> None:
    """An order begins with what is largest, and with what is no number; ties stay as charted."""
    assert [each.metric for each in Choice(sort=sort).rows(ROWS)] == wanted


def test_the_next_order_comes_round() -> None:
    """After as many steps as there are orders the first one is back."""
    choice = Choice("loss", by_rank=True)
    for sort in (*SORTS[1:], SORTS[0]):
        choice = choice.with_next_sort()
        assert choice == Choice("loss", sort, by_rank=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 4), ("LOSS", 1), ("l(r|oss)", 2), ("^train / lr$", 1), ("^lr$", 1), ("none", 0), ("(", 4)],
)
def test_filters(text: str, wanted: int) -> None:
    """A filter looks into the name with and without its group; one that cannot be read takes all."""
    assert len(Choice(text).rows(ROWS)) == wanted


@given(st.text(max_size=12))
def test_any_text_is_a_filter_or_is_refused_at_a_character(text: str) -> None:
    """What cannot be read is refused with a place in it."""
    try:
        re.compile(text)
    except re.error:
        with pytest.raises(PatternError, match=r"\^$") as refused:
            compile_filter(text)
        assert 0 <= refused.value.place <= len(text)
    else:
        assert compile_filter(text).pattern == text


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([1.0, 9.0], False), ([0.5, 0.51, 0.5, 1.1], True), ([1.0, 2.0, 3.0, 4.0], False), ([5.0, 5.0, 5.5], False)],
)
def test_a_rank_is_an_outlier(values: list[float], wanted: bool) -> None:
    """Of three ranks or more, an outlier is far from the median compared with the others, and by a fifth of it."""
    assert any(map(outlier_check(values), values)) == wanted


@given(st.lists(st.lists(st.floats(), max_size=70), max_size=5), st.integers(20, 250), st.integers(0, 80))
def test_plots_fit(drawn: list[list[float]], width: int, lines: int) -> None:
    """Whatever the values, plots take no more than the lines and cells that are free."""
    found = list(draw_plots([row("m" * 30, values, group="g") for values in drawn], width, lines))
    assert len(found) <= lines
    assert all(each.cell_len <= width for each in found)
    assert bool(found) == (lines >= 6 and any(len(values) > 1 for values in drawn))


def test_a_plot_shows_its_limits_and_what_is_no_number() -> None:
    """The largest value is at the top, the smallest at the bottom, and a cross is where there was none."""
    title, first, *_, last = [each.plain for each in draw_plots([row("loss", [4.0, nan, inf, 1.5])], 60, 10)]
    assert title.split() == ["loss", "1.5"]
    assert first.split()[0] == "4"
    assert last.split()[0] == "1.5"
    assert "\u00d7" in last
