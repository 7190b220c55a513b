"""The rests of background work: between slices, and rarer where something would be lost."""

from __future__ import annotations

import time

import pytest

from tachograph.recording.gil_yield import HURRIED, REST, SLICE, GilYield, begin


def shortest(*, hurries: bool) -> float:
    """Return the seconds of the shortest of twenty calls, each after a slice of work that is over."""
    found = []
    for _ in range(20):
        rest = GilYield(hurries=lambda: hurries)
        until = time.perf_counter() + 2 * SLICE
        while time.perf_counter() < until:
            pass
        began = time.perf_counter()
        rest()
        found.append(time.perf_counter() - began)
    return min(found)


def test_it_rests_after_each_slice() -> None:
    """Another thread gets the interpreter after half a millisecond of work."""
    assert shortest(hurries=False) >= REST


def test_where_losses_threaten_it_rests_less_often() -> None:
    """There it goes on, and rests once it has had the interpreter as long as that would be left to it anyway."""
    assert shortest(hurries=True) < REST
    rest = GilYield(hurries=lambda: True)
    time.sleep(2 * HURRIED)
    began = time.perf_counter()
    rest()
    assert time.perf_counter() - began >= REST


@pytest.mark.timing
def test_the_parts_of_a_tick_share_its_slices() -> None:
    """Each part asks for itself, but a rest is due after what all of them have done; waiting before is no work."""
    time.sleep(2 * SLICE)
    begin()
    first, second = GilYield(HURRIED / 2), GilYield(HURRIED / 2)
    for rest in (first, second):
        until = time.perf_counter() + HURRIED / 3
        while time.perf_counter() < until:
            pass
        began = time.perf_counter()
        rest()
    assert time.perf_counter() - began >= REST
