"""The line of a curve in a chart, and the axis it is on: the same in every window, with NumPy and without."""

from __future__ import annotations

import math
import sys
from math import isfinite, log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import SECOND, START, Clock, logs, rank
from tachograph.hub.hub import Hub
from tachograph.runs.blocks import PAIR, Sample, pack, unpack
from tachograph.runs.file import RunFile, look
from tachograph.runs.smoothing import Average, means
from tachograph.runs.store import path_of
from tachograph.runs.window import Drawing, Stretch, stretches
from tachograph.runs.x_axis import Placed, XAxis

VALUES = st.floats(-1e6, 1e6) | st.sampled_from([float("inf"), float("nan")])
BRANCH = st.lists(st.tuples(st.integers(0, 50).map(float), VALUES), min_size=1, max_size=60).map(
    lambda found: sorted(found, key=lambda point: point[0])
)
WEIGHT = st.sampled_from([0.01, 0.5, 0.9, 0.99])
SPACING = st.sampled_from([None, 0.25, 7.0])
AVERAGED = [4.0, (4.0 / 4 + 3.0 / 2) / (3 / 4), (4.0 / 8 + 3.0 / 4 + 2.0 / 2) / (7 / 8)]


def bare(patch: pytest.MonkeyPatch) -> None:
    """Take NumPy away."""
    patch.setitem(sys.modules, "numpy", None)


def averaged(found: list[tuple[float, float]], weight: float, spacing: float | None, parts: int = 1) -> Any:
    """Return the average of points at their x, and its state; taken in as many parts."""
    average = Average(weight, spacing)
    for place in range(parts):
        begin, end = (len(found) * each // parts for each in (place, place + 1))
        average.add(b"".join(PAIR.pack(*point) for point in found[begin:end]))
        average.at([0.0])
    return [*average.at([x for x, _ in found]), *(each for each in average.state if each is not None)]


@given(BRANCH, WEIGHT, SPACING)
def test_an_average_does_not_depend_on_numpy_nor_on_its_parts(
    found: list[tuple[float, float]], weight: float, spacing: float | None
) -> None:
    """The hub needs no NumPy, and of very many points it holds some at a time."""
    whole = averaged(found, weight, spacing)
    unique = len({x for x, _ in found}) == len(found)
    if unique:
        assert averaged(found, weight, spacing, parts=3) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        bare(patch)
        assert averaged(found, weight, spacing) == pytest.approx(whole, rel=1e-9, abs=1e-9)


@given(BRANCH, st.integers(1, 9))
def test_the_mean_of_a_stretch_is_between_its_extremes(found: list[tuple[float, float]], many: int) -> None:
    """With NumPy and without; of what is not finite nothing is in it."""
    pairs = b"".join(PAIR.pack(*point) for point in found)
    xs = [x for x, y in found if isfinite(y)]
    if not xs:
        return
    line = means(pairs, many, xs)
    values = [y for _, y in found if isfinite(y)]
    assert min(values) - 1e-6 <= min(line)
    assert max(line) <= max(values) + 1e-6
    with pytest.MonkeyPatch.context() as patch:
        bare(patch)
        assert means(pairs, many, xs) == pytest.approx(line, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "bare"])
def test_a_gap_in_time_weighs_less_of_what_was_before(*, numpy: bool) -> None:
    """Over time the weight is that of the usual distance: a point thrice as far off keeps its cube of what was."""
    with pytest.MonkeyPatch.context() as patch:
        if not numpy:
            bare(patch)
        *_, last, total, mass, _ = averaged([(0.0, 1.0), (1.0, 1.0), (4.0, 2.0)], 0.5, 1.0)
    before = (1 - 0.25) * 1.0
    assert total == pytest.approx(before / 8 + 2.0 * 7 / 8)
    assert mass == pytest.approx(1 - 0.5**5)
    assert last == pytest.approx(total / mass)
    assert log(0.5) < 0


SAMPLES = [
    Sample(1, START, 0.0, 1.0, {"count": 1}),
    Sample(2, START + 2 * SECOND, 1.0, 2.0, {"count": 4, "min": 0.0, "min_x": 0.25, "max": 9.0, "max_x": 0.5}),
    Sample(3, START + 3 * SECOND, 2.0, 3.0, {}),
]


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "bare"])
@pytest.mark.parametrize(
    ("axis", "xs", "ends"),
    [
        (XAxis("time", START - SECOND), [1.0, 3.0, 4.0], (1.5, 2.0)),
        (XAxis("number"), [0.0, 4.0, 5.0], (1.0, 2.0)),
    ],
    ids=["time", "number"],
)
def test_points_and_their_intervals_are_put_on_another_axis(
    axis: XAxis, xs: list[float], ends: tuple[float, float], *, numpy: bool
) -> None:
    """Times count from the origin, numbers count values that a throttle held back; extremes lie between points."""
    with pytest.MonkeyPatch.context() as patch:
        if not numpy:
            bare(patch)
        placed = Placed(axis)
        found = list(unpack(placed.block(pack(SAMPLES))))
        later = list(unpack(placed.block(pack([Sample(4, START + 9 * SECOND, 3.0, 0.0, {})]))))
    assert [each.x for each in found] == xs
    assert (found[1].more["min_x"], found[1].more["max_x"]) == ends
    assert [each.value for each in found] == [1.0, 2.0, 3.0]
    assert later[0].x == (10.0 if axis.kind == "time" else 6.0)
    with pytest.raises(ValueError, match="bytes for the rest"):
        placed.block(pack(SAMPLES)._replace(rest=b"12345678"))


BEGIN = START + SECOND


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run: curve 1 has 20,000 values, a second and two x apart each."""
    store = tmp_path_factory.mktemp("lines")
    clock = Clock()
    hub = Hub(store, run="run", clock=clock)
    for first in range(0, 20_000, 1000):
        sent = [
            ("tachograph.metric", {"metric": "m", "x": 2.0 * at, "value": float(at % 10)})
            for at in range(first, first + 1000)
        ]
        hub.receive_logs(logs(rank(0), *sent, first=1 + first, apart=SECOND))
    hub.close()
    return path_of(store, "run")


def drawn(file: Path, how: Drawing) -> Stretch:
    """Return the only branch."""
    with look(RunFile(file)) as reading:
        (found,) = stretches(reading, 1, how)
    return found


@pytest.mark.parametrize("axis", [XAxis(), XAxis("number"), XAxis("time", BEGIN)], ids=["own", "number", "time"])
def test_a_smoothed_value_is_the_same_at_every_zoom(file: Path, axis: XAxis) -> None:
    """The average is over all points before thinning: what is said of an x does not depend on what is around it."""
    whole = drawn(file, Drawing(100, axis=axis, weight=0.9))
    assert not whole.exact
    assert len(whole.x) <= 200
    assert whole.line is not None
    known = dict(zip(whole.x, whole.line, strict=True))
    middle = whole.x[len(whole.x) // 2]
    for width in (7.0, 300.0, 5000.0):
        part = drawn(file, Drawing(100, middle - width, middle + width, axis, 0.9))
        assert part.line is not None
        same = {x: value for x, value in zip(part.x, part.line, strict=True) if x in known}
        if width < 10:
            assert part.exact
            assert middle in same
        assert same == {x: pytest.approx(known[x]) for x in same}
    assert whole.going is not None
    last = drawn(file, Drawing(100, whole.x[-1] - 5, axis=axis, weight=0.9)).line or [math.nan]
    assert whole.going.total / whole.going.mass == pytest.approx(last[-1])


def test_very_many_points_have_the_same_average(file: Path) -> None:
    """It does not depend on how many points are held at once."""
    whole = drawn(file, Drawing(50, weight=0.99))
    parts = drawn(file, Drawing(50, weight=0.99, at_once=1500))
    known = dict(zip(whole.x, whole.line or [], strict=True))
    assert {x: known[x] for x in parts.x if x in known} == {
        x: pytest.approx(value) for x, value in zip(parts.x, parts.line or [], strict=True) if x in known
    }


@pytest.mark.parametrize(
    ("axis", "scale"),
    [(XAxis(), 2.0), (XAxis("number"), 1.0), (XAxis("time", BEGIN), 1.0), (XAxis("time"), 1.0)],
    ids=["own", "number", "relative", "wall"],
)
def test_a_window_is_one_of_the_axis(file: Path, axis: XAxis, scale: float) -> None:
    """Its ends, and the x in it, are on the axis that was asked for."""
    origin = BEGIN / SECOND if axis == XAxis("time") else 0.0
    part = drawn(file, Drawing(1000, origin + 5000 * scale, origin + 5100 * scale, axis))
    assert part.exact
    assert part.points == 101
    assert part.x[1:-1] == pytest.approx([origin + at * scale for at in range(5000, 5101)])
    assert part.y[1:-1] == [float(at % 10) for at in range(5000, 5101)]


def test_a_thinned_line_is_the_mean_within_its_envelope(file: Path) -> None:
    """What is thinned has a line in the middle of what was recorded; what is not has none beside its points."""
    whole = drawn(file, Drawing(100))
    assert whole.line == pytest.approx([4.5] * len(whole.x), abs=0.1)
    assert drawn(file, Drawing(100, 10.0, 50.0)).line is None


def test_knots_tell_the_times_of_points(file: Path) -> None:
    """Between them an event is found on the curve by its time."""
    found = drawn(file, Drawing(100, knots=True)).knots
    assert found is not None
    assert found == sorted(found)
    assert len(found) < 300
    for time, x in found:
        assert x / 2 == pytest.approx(time - BEGIN / SECOND)
