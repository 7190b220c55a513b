"""Goodput: every second of a run is in one category, and in the right one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.diagnosis.goodput import CATEGORIES, TrainingAttempt, goodput
from tachograph.diagnosis.phases import PHASES, productive

SECOND = 1_000_000_000


def attempt(begin: float, saved: float | None = None, rest: float = 0.0, **phases: float) -> TrainingAttempt:
    """Return a start of the program; times in seconds."""
    nanoseconds = [phases.get(name, 0.0) * SECOND for name in PHASES]
    end = begin * SECOND + sum(nanoseconds)
    after = [rest * SECOND * (name == "other") for name in PHASES]
    kept = None if saved is None else int(saved * SECOND)
    return TrainingAttempt(int(begin * SECOND), int(end), int(end + rest * SECOND), nanoseconds, after, kept)


def test_a_run_without_an_accident() -> None:
    """Start-up, steps with their waits, and what follows them add up to the wall time."""
    found = goodput(0, 130 * SECOND, [attempt(10, forward=60, backward=30, data_wait=12, checkpoint=8, evaluation=5)])
    assert found is not None
    assert {name: seconds for name, seconds in found.seconds.items() if seconds} == {
        "startup": 10,
        "productive": 90,
        "data_wait": 12,
        "checkpoint": 8,
        "evaluation": 5,
        "other": 5,
    }
    assert (
        found.line()
        == "goodput 69% of 2 min (time in training steps), data wait 9%, start-up 8%, checkpoints 6%, evaluation 4%, "
        "after the last step 4%"
    )


def test_a_restart_loses_what_was_not_saved() -> None:
    """Steps after the last checkpoint of an attempt that another one follows are lost; without one, all of them."""
    found = goodput(
        0,
        300 * SECOND,
        [attempt(10, 60, forward=90, checkpoint=10), attempt(130, forward=20), attempt(160, forward=140)],
    )
    assert found is not None
    seconds = found.seconds
    assert (seconds["lost"], seconds["restart"]) == (30 + 20, 20 + 10)
    assert (seconds["productive"], seconds["startup"], seconds["checkpoint"]) == (200, 10, 10)
    assert found.wall == 300


def test_nothing_trained() -> None:
    """A run that has not trained has no goodput."""
    assert goodput(0, SECOND, []) is None


def test_programs_beside_each_other_have_none() -> None:
    """Two that train at once without ranks are no attempts of one training; clocks may differ by a little."""
    one = attempt(10, forward=90)
    assert goodput(0, 200 * SECOND, [one, attempt(50, forward=100)]) is None
    assert goodput(0, 200 * SECOND, [one, attempt(99.5, forward=100)]) is not None


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.floats(0, 100),
            st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e3), max_size=9),
        ),
        min_size=1,
        max_size=5,
    ),
    st.floats(0, 100),
)
def test_all_time_is_in_one_category(starts: list[tuple[float, float, dict[str, float]]], after: float) -> None:
    """Whatever the attempts are, the categories add up to the wall time, and none is negative."""
    now, attempts = 0.0, []
    for pause, rest, phases in starts:
        one = attempt(now + pause, None, rest, **phases)
        one = one._replace(saved=int(productive(one.phases) / 2))
        attempts.append(one)
        now = one.last / SECOND
    found = goodput(0, int((now + after) * SECOND), attempts)
    assert found is not None
    assert found.wall == pytest.approx(now + after, abs=1e-3)
    assert min(found.seconds.values()) >= 0
    assert set(found.seconds) == set(CATEGORIES)
