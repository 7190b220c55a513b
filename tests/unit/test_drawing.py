"""Drawings for notebooks: lines within their frame, gaps, many names, any text."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from recorded_runs import points, record
from tachograph.runs.drawing import HEIGHT, WIDTH, CurveDrawing, DrawnLine

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def paths(drawing: CurveDrawing) -> list[str]:
    """Return the ways of the lines, without those of the legend."""
    return [way for way in re.findall(r'<path class="curve [^>]*?d="([^"]*)"', drawing.svg) if not way.endswith("h18")]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_every_place_is_within_the_frame(places: list[tuple[float, float]]) -> None:
    """Whatever the values, the drawing is XML, and each finite place is a place of it."""
    drawing = CurveDrawing("loss", [DrawnLine("loss", places)])
    ET.fromstring(drawing.svg)  # noqa: S314 - our own
    found = [
        tuple(map(float, place.split())) for way in paths(drawing) for place in re.findall(r"[\d.-]+ [\d.-]+", way)
    ]
    assert len(found) == sum(math.isfinite(x) and math.isfinite(y) for x, y in places)
    assert all(0 <= left <= WIDTH and 0 <= top <= HEIGHT for left, top in found)


def test_values_that_are_no_numbers_are_gaps() -> None:
    """A line ends before a NaN and goes on behind it; a place that stands alone is a dot."""
    places = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 1.5), (4.0, math.nan), (5.0, 1.0), (6.0, 1.2)]
    (way,) = paths(CurveDrawing("loss", [DrawnLine("loss", places)]))
    assert way.count("M") == 3
    assert way.count("h.1") == 1


def test_names_are_text() -> None:
    """A name that looks like HTML is shown as it is."""
    drawing = CurveDrawing("<script>", [DrawnLine("a&b<c>", [(0.0, 1.0)])], x="<x>")
    assert "<script>" not in drawing.svg
    assert ET.fromstring(drawing.svg).attrib["aria-label"] == "<script>"  # noqa: S314 - our own
    assert "a&amp;b&lt;c&gt;" in drawing.svg


def test_each_part_has_a_colour_of_its_own_in_light_and_in_dark() -> None:
    """No part is left to SVG's black: a rule of the style names each shape by its class, and each text."""
    drawing = ET.fromstring(CurveDrawing("loss", [DrawnLine("loss", [(0.0, 1.0), (1.0, 2.0)])]).svg)  # noqa: S314
    shapes = [(each.tag.rpartition("}")[2], each.get("class", "").split()) for each in drawing.iter()]
    (style,) = [str(each.text) for each in drawing.iter() if each.tag.endswith("style")]
    for scheme in style.split("@media"):
        coloured = set(re.findall(r"\.tachograph ([\w.]+){(?:fill|stroke):#", scheme))
        for tag, classes in shapes:
            names = (
                {"text", *(f"text.{name}" for name in classes)} if tag == "text" else {f".{name}" for name in classes}
            )
            assert names & coloured or tag not in {"text", "rect", "line", "path"}, (tag, classes)


def test_lines_that_share_a_colour_differ_in_their_dashes() -> None:
    """Ten lines are told apart, whatever the number of colours."""
    drawing = CurveDrawing("many", [DrawnLine(f"l{number}", [(0.0, number), (1.0, number)]) for number in range(10)])
    looks = re.findall(r'<path class="curve (c\d)" ((?:stroke-dasharray="[^"]*")?)', drawing.svg)[:10]
    assert len(set(looks)) == 10


def test_a_run_draws_curves_of_ranks_and_of_other_runs(tmp_path: Path) -> None:
    """One line a rank, or a run; a metric that is not there is named, one that only the other run lacks is left out."""
    record(tmp_path, "one", *points([1.0, 0.5, 0.25]), *points([9.0], "only-here"))
    record(tmp_path, "one", *points([1.1, 0.6, 0.3]), number=1)
    record(tmp_path, "two", *points([2.0, 1.0, 0.5]))
    one, two = (tachograph.runs.open(name, store=tmp_path) for name in ("one", "two"))
    assert [line.label for line in one.plot("loss").lines] == ["rank 0", "rank 1"]
    assert [line.places for line in one.plot("loss", rank=1).lines] == [[(0.0, 1.1), (1.0, 0.6), (2.0, 0.3)]]
    assert [line.label for line in two.plot("loss", compare=[one], rank=0).lines] == ["two", "one"]
    assert len(one.plot("only-here", "loss", compare=[two]).lines) == 4
    with pytest.raises(LookupError, match="did you mean 'loss'"):
        one.plot("los")
    with pytest.raises(TypeError, match=r'plot\("loss"\)'):
        one.plot()


def test_a_run_shows_itself(tmp_path: Path) -> None:
    """A run shows its state and its curves, and names those that it does not draw; a drawing can be kept as a file."""
    record(tmp_path, "one", *(point for name in "abcdefgh" for point in points([1.0, 2.0], name)))
    run = tachograph.runs.open("one", store=tmp_path)
    html = run._repr_html_()
    assert html.count("<svg") == 6
    assert "<code>g</code>, <code>h</code>" in html
    run.plot("a").save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_metric_shows_its_definition_and_its_last_value() -> None:
    """In a notebook a metric is a table; names are text."""
    metric = tachograph.Metric("a<b", group="drawn", scale="s")
    assert "last value" not in metric._repr_html_()
    metric.record(0.25)
    html = metric._repr_html_()
    assert "a&lt;b" in html
    assert "0.25" in html
