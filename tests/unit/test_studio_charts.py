"""The charts of a group: which metrics share one, and its axes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from recorded_runs import DEFINITION, points, record
from tachograph.runs.file import RunFile, look
from tachograph.runs.store import run_path
from tachograph.studio.charts import AGREE, MOST_AXES, charts, curves

METRIC = st.tuples(st.floats(-1e9, 1e9) | st.just(float("nan")), st.sampled_from([None, "a", "b", "c"]), st.booleans())


@given(st.lists(METRIC, min_size=1, max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_a_chart_has_two_axes_at_most_and_what_shares_one_agrees(found: list[tuple[float, str | None, bool]]) -> None:
    """Each metric is in one chart; those without a scale share one only where their values are of one size."""
    definitions, values = [], []
    for place, (value, scale, progress) in enumerate(found):
        about = {"scale": scale} if scale else {"progress": True} if progress else {}
        definitions.append((DEFINITION, {"metric": f"m{place}", "group": "g", **about}))
        values += points([value], f"m{place}", group="g")
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), "run", *definitions, *values)
        with look(RunFile(run_path(Path(folder), "run"))) as reading:
            drawn = charts(reading, curves(reading))
    names = sorted(each["metric"] for chart in drawn for each in chart["metrics"])
    assert names == [f"m{place}" for place in range(len(found))]
    assert [chart["shared"] for chart in drawn] == [True] + [False] * (len(drawn) - 1)
    for chart in drawn:
        metrics = [each for each in chart["metrics"] if not each["progress"]]
        assert {each["scale"] for each in chart["metrics"]} == {each["scale"] for each in chart["scales"]}
        assert len({each["scale"] for each in metrics}) <= MOST_AXES
        for axis in chart["scales"]:
            own = [found[int(each["metric"][1:])] for each in metrics if each["scale"] == axis["scale"]]
            assert {scale for _, scale, _ in own} <= {axis["name"]}
            sizes = [abs(value) for value, _, _ in own if value and value == value]  # noqa: PLR0124 - NaN
            assert axis["name"] or not sizes or max(sizes) <= AGREE * min(sizes)
