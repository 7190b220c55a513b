"""The filter of a list of runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tachograph.runs.filter import FilterError, parse_filter

RUN: dict[str, Any] = {
    "id": "a/1",
    "name": "The best",
    "program": "train.py",
    "state": "failed",
    "notes": "diverges at 40k",
    "tags": ("sweep", "lr: big"),
    "ranks": 4,
    "start": 1_767_225_600_000_000_000,  # 2026-01-01 in UTC
    "duration": 7300.0,
    "size": 3 * 2**20,
    "config.lr": 1e-3,
    "config.model": "ResNet",
    "config.amp": True,
    "config.seed": 2**62 + 1,
    "config.resume": None,
    "summary.loss": 0.25,
    "last.loss": 0.5,
    "min.val/loss": 0.125,
    "last.odd": float("nan"),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("loss < 0.3", True),
        ("loss<0.3 lr>1e-4", True),
        ("loss < 0.3 lr > 1", False),
        ("last.loss < 0.3", False),
        ('"min.val/loss" <= 0.125', True),
        ("tag:sweep state:failed best", True),
        ("tag:swe", False),
        ("tag:swe*", True),
        ('tag:"lr: big"', True),
        ("-tag:sweep", False),
        ("-state:running -nothing", True),
        ("model=resnet amp=true", True),
        ("model != resnet", False),
        ("tags = sweep", True),
        ("missing != 1", False),
        ("odd = nan", True),
        ("odd < 1", False),
        ("duration > 2h duration < 1d size >= 3M size < 4MiB", True),
        ("start > 2025-12-30 started < 2026-01-03", True),
        ("note", False),
        ('notes:diverges "at 40K"', True),
        ("sweep", True),
        ("ranks >= 4 ranks == 4", True),
        ("ampersand", False),
        ("model < 3", False),
        ("config.seed = 4611686018427387905", True),
        ("seed = 4611686018427387904", False),
        ("seed != 4611686018427387904 seed > 4611686018427387904 seed <= 4611686018427387905", True),
        ("seed > 4.6e18 ranks = 4.0 ranks = +4", True),
        ("resume = none config.resume = null", True),
        ("resume != 3", True),
        ("resume < 3", False),
    ],
)
def test_a_filter_holds_for_a_run(text: str, holds: bool) -> None:
    """Comparisons, fields and texts are all to hold; keys are found behind their dot, configuration first."""
    assert parse_filter(text).holds(RUN) is holds


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("loss <", 6, "missing value"),
        ("loss < < 3", 7, "missing value"),
        ("lr > big", 5, "expected a number"),
        ("ok sate:failed", 3, "did you mean state:?"),
        ("state:faild", 6, "did you mean 'failed'?"),
        ("tag:", 4, "missing value"),
        ('name "open', 5, "this quote is not closed"),
        ("< 3", 0, "a column"),
        ("a = 1 >= 2", 6, "a column"),
    ],
)
def test_a_filter_that_cannot_be_read_says_where_and_why(text: str, position: int, why: str) -> None:
    """The position is that of the character at fault, and the words say what to write."""
    with pytest.raises(FilterError, match=why.replace("?", r"\?")) as refused:
        parse_filter(text)
    assert refused.value.position == position


def test_a_column_that_no_run_has_is_named_with_the_nearest() -> None:
    """A filter by a misspelt column finds nothing, and says so."""
    assert parse_filter("lss < 3").unknown(RUN) == "no run has 'lss': did you mean 'loss'?"
    assert parse_filter("loss < 3 ranks = 2").unknown(RUN) == ""


@given(some.text(alphabet='ab :-<>=!"\\3.e\n', max_size=20))
def test_any_text_is_a_filter_or_is_refused_within_it(text: str) -> None:
    """No text makes another error than the one with a position, which is in the text or right behind it."""
    at = 0
    try:
        parse_filter(text).holds(RUN)
    except FilterError as error:
        at = error.position
    assert 0 <= at <= len(text)
