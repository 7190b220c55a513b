"""The line of a curve in a chart, and the axis it is on: the same in every window, with NumPy and without."""

from __future__ import annotations

import sys
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_requests import SECOND, START, Clock, logs, rank
from tachograph.hub.hub import Hub
from tachograph.runs.blocks import PAIR, Sample, pack, unpack
from tachograph.runs.file import RunFile, look
from tachograph.runs.store import path_of
from tachograph.runs.window import Drawing, Stretch, means, stretches
from tachograph.runs.x_axis import Placed, XAxis

VALUES = st.floats(-1e6, 1e6) | st.sampled_from([float("inf"), float("nan")])
BRANCH = st.lists(st.tuples(st.integers(0, 50).map(float), VALUES), min_size=1, max_size=60).map(
    lambda found: sorted(found, key=lambda point: point[0])
)


def bare(patch: pytest.MonkeyPatch) -> None:
    """Take NumPy away."""
    patch.setitem(sys.modules, "numpy", None)


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


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "bare"])
@pytest.mark.parametrize("pairs", [50, 1000], ids=["thinned", "whole"])
def test_the_line_of_a_throttled_curve_is_that_of_its_values(tmp_path: Path, pairs: int, *, numpy: bool) -> None:
    """The extremes of intervals are drawn, and do not pull the line: an average of it is that of what was recorded."""
    told = {"min": 0.0, "max": 100.0, "count": 9}
    sent = [
        (
            "tachograph.metric",
            {"metric": "m", "x": float(at), "value": 1.0, "min_x": at - 0.5, "max_x": at - 0.25, **told},
        )
        for at in range(500)
    ]
    hub = Hub(tmp_path, run="run", clock=Clock())
    hub.receive_logs(logs(rank(0), *sent, apart=SECOND))
    hub.close()
    with pytest.MonkeyPatch.context() as patch:
        if not numpy:
            bare(patch)
        whole = drawn(path_of(tmp_path, "run"), Drawing(pairs))
    assert whole.exact is (pairs == 1000)
    assert max(whole.y) == 100.0
    assert whole.line == [1.0] * len(whole.x)


def test_knots_tell_the_times_of_points(file: Path) -> None:
    """Between them an event is found on the curve by its time."""
    found = drawn(file, Drawing(100, knots=True)).knots
    assert found is not None
    assert found == sorted(found)
    assert len(found) < 300
    for time, x in found:
        assert x / 2 == pytest.approx(time - BEGIN / SECOND)
