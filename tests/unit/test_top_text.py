"""What ``tachograph top`` makes of names, numbers, curves, keys and narrow terminals."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.cli.top.legible import clock, count, lasting, per_second, printable, shown_number, took
from tachograph.cli.top.plots import BLOCKS, NO_NUMBER, draw_sparkline, merge_ranks
from tachograph.cli.top.screen import keys
from tachograph.cli.top.tables import Column, fit_columns

FLOATS = st.floats(width=64)


@given(st.text(st.characters()), st.integers(2, 60))
def test_whatever_a_run_says_is_legible(text: str, most: int) -> None:
    """Every text becomes one that can be printed and is no longer than asked for; what can be printed stays."""
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= max(most, 10 * len(text))
    if text.isprintable() and len(text) <= most:
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("\ud800", r"\ud800"),
        ("[bold]:smile: \u00fc \U0001f980", "[bold]:smile: \u00fc \U0001f980"),
    ],
)
def test_what_cannot_be_printed_is_spelled_out(text: str, shown: str) -> None:
    """Control characters, directions and lone surrogates are written as in Python; everything else as it is."""
    assert printable(text) == shown


@given(FLOATS)
def test_numbers_are_short_and_right(value: float) -> None:
    """A number takes at most ten characters, and is what was recorded to three digits at least."""
    shown = shown_number(value)
    assert len(shown) <= 10
    if math.isfinite(value) and abs(value) < 1e308:  # rounded up, more would be beyond all floats
        assert math.isclose(float(shown.replace(",", "")), value, rel_tol=6e-3, abs_tol=0.0 if value else 1e-9)


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (shown_number(None), "-"),
        (shown_number(math.nan), "NaN"),
        (shown_number(-math.inf), "-inf"),
        (shown_number(math.inf), "inf"),
        (shown_number(9_999_999), "9,999,999"),
        (shown_number(0.125), "0.125"),
        (shown_number(12_345_678), "1.235e+07"),
        (count(None), "-"),
        (count(9_999), "9999"),
        (count(12_400), "12.4k"),
        (count(3_100_000), "3.1M"),
        (per_second(None), "-"),
        (per_second(math.inf), "-"),
        (per_second(0.5), "0.5/s"),
        (per_second(12_345), "12.3k/s"),
        (lasting(None), "-"),
        (lasting(math.nan), "-"),
        (lasting(-3), "0 s"),
        (lasting(59.6), "1 m 00 s"),
        (lasting(245), "4 m 05 s"),
        (lasting(3 * 3600 + 12 * 60), "3 h 12 m"),
        (lasting(2 * 86_400 + 3600), "2 d 01 h"),
        (took(None), "-"),
        (took(0.0), "0 ns"),
        (took(2.5e-7), "250 ns"),
        (took(0.00084), "840 \u00b5s"),
        (took(0.0123), "12.3 ms"),
        (took(1.25), "1.25 s"),
        (took(12_345.0), "12,345 s"),
        (clock(-1), clock(0)),
    ],
)
def test_numbers_are_written_as_people_read_them(shown: str, wanted: str) -> None:
    """Counts, rates, durations and times have few digits and their units."""
    assert shown == wanted


def test_a_time_is_of_the_clock() -> None:
    """The time of the day has eight characters, also of a time that no calendar has."""
    assert {len(clock(each)) for each in (0, 1_790_000_000_000_000_000, 2**63 - 1)} == {8}


@given(st.lists(FLOATS, max_size=80), st.integers(0, 80))
@example(values=[0.0, 5e-324], width=2)
def test_a_sparkline_is_as_high_as_its_values(values: list[float], width: int) -> None:
    """It has a character a value; the smallest one is lowest, the largest one highest, others are crossed."""
    drawn = draw_sparkline(values, width)
    shown = values[-width:] if width else []
    assert len(drawn) == len(shown)
    finite = [(value, BLOCKS.index(block)) for value, block in zip(shown, drawn, strict=True) if math.isfinite(value)]
    assert drawn.count(NO_NUMBER) == len(shown) - len(finite)
    assert [height for _, height in sorted(finite)] == sorted(height for _, height in finite)
    if len({value for value, _ in finite}) > 1:
        assert min(finite)[1] == 0
        assert max(finite)[1] == len(BLOCKS) - 1


def test_several_curves_are_drawn_as_their_median() -> None:
    """The newest values of all curves are at the same place; where none is finite, nothing is."""
    found = merge_ranks([[1.0, 2.0, math.nan], [4.0, math.inf], [6.0, 8.0, math.nan]], 10)
    assert found[:2] == [3.5, 4.0]
    assert math.isnan(found[2])
    assert merge_ranks([[1.0, 2.0], [3.0]], 1) == [2.5]
    assert merge_ranks([], 5) == []


def test_keys_are_told_apart() -> None:
    """Arrows of both modes, pages and letters are known; what is none of ours does nothing."""
    typed = b"\x1b[A\x1bOBk \x1b[5~\x1b[6~\x1b[1;5C\x1b[Hx\x1b[F\tr\x1bq\xc3\xa4"
    assert keys(typed) == [
        *("up", "down", "up", "page down", "page up", "page down", "home", "end", "next", "ranks", "quit")
    ]


@given(st.integers(0, 300))
def test_columns_fit_as_far_as_they_can(width: int) -> None:
    """The most dispensable columns go first; those that stay fill the terminal, but never less than the names need."""
    columns = (Column("name", 0), Column("a", 10), Column("b", 24, drop=1), Column("c", 9, drop=2))
    found = fit_columns(columns, width)
    places = [place for place, _ in found]
    assert places[:2] == [0, 1]
    assert 2 in places or 3 not in places
    total = sum(each for _, each in found) + len(found) - 1
    assert total == max(width, total if len(found) == 2 else 0)
