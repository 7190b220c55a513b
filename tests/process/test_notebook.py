"""The example notebook, executed by a real kernel, and what objects show of themselves there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

VIEW = "application/vnd.jupyter.widget-view+json"
HALF = (
    "import tachograph\nhalf = tachograph.progress(range(10), 'half')\nassert [next(half), next(half)] == [0, 1]",
    """
from tachograph.instrumentation import TqdmInstrumentor
from tachograph.testing import capture
from tqdm.auto import tqdm
TqdmInstrumentor().instrument()
bar = tqdm(total=7)
with capture() as captured:
    bar.update(3)
    bar.set_postfix(loss=0.5)
    found = captured.value("progress.done", "tqdm", position=1)
    TqdmInstrumentor().uninstrument()
    found = found, captured.value("loss", "tachograph.metric")
found
""",
    "assert list(half) == list(range(2, 10))",
)
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
pytestmark = [
    # Of Jupyter's own: a kernel over TCP is not encrypted, and pyzmq has names that are to go.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def shown(cell: Any) -> list[str]:
    """Return the HTML that a cell has put out, in order."""
    return [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the code cells of the example, executed in a kernel with a store of its own."""
    notebook = nbformat.read(NOTEBOOK, 4)
    environ = {**os.environ, "TACHOGRAPH_STORE": str(tmp_path_factory.mktemp("store"))}
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=environ)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell_with(cells: list[Any], text: str) -> Any:
    """Return the only cell whose source has a text."""
    (found,) = [cell for cell in cells if text in cell.source]
    return found


def test_the_cell_that_starts_says_where_the_run_is_drawn(executed: list[Any]) -> None:
    """``start(hub=True)`` shows a pipeline with the addresses of its hub and of its page."""
    (html,) = shown(cell_with(executed, "start(hub=True"))
    assert re.search(r"page</th><td>http://127\.0\.0\.1:\d+", html)
    assert "running" in html


def test_progress_is_a_bar_without_a_widget(executed: list[Any]) -> None:
    """Each loop is one bar of HTML in the cell's output, which ends full; nothing of a terminal's bar is there."""
    cell = cell_with(executed, "def train")
    (bar,) = shown(cell)
    assert '<progress aria-label="train 0.02" value="300" max="300"' in bar
    assert [output for output in cell.outputs if output.output_type == "stream"] == []


def test_progress_is_tqdms_widget_where_that_is_installed() -> None:
    """While a loop is under way its bar is the widget of tqdm.notebook, with HTML beside it; in the end HTML alone.

    The bars of a program's own ``tqdm.auto`` are recorded as those of a terminal are.
    """
    pytest.importorskip("ipywidgets")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in HALF])
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3")
    with client.setup_kernel():
        for place, cell in enumerate(notebook.cells[:2]):
            client.execute_cell(cell, place)
        ((under_way,), (bar, text)) = [[dict(output["data"]) for output in cell.outputs] for cell in notebook.cells[:2]]
        client.execute_cell(notebook.cells[2], 2)
    widgets = client.widget_state.values()
    (ended,) = [output["data"] for output in notebook.cells[0].outputs]
    assert {under_way[VIEW]["model_id"], bar[VIEW]["model_id"]} <= set(client.widget_state)
    assert [state["max"] for state in widgets if state["_model_name"] == "FloatProgressModel"] == [10, 7]
    assert (VIEW in ended, 'value="10" max="10"' in ended["text/html"]) == (False, True)
    assert text["text/plain"] == "(3, 0.5)"


def test_a_run_draws_itself_and_its_curves(executed: list[Any]) -> None:
    """The run shows its configuration and its curves, a plot two of them in one drawing, and a frame every point."""
    by_source = {cell.source.splitlines()[-1]: cell for cell in executed}
    (html,) = shown(by_source["run"])
    assert "batch</th><td>32" in html
    assert 'aria-label="loss"' in html
    (both,) = shown(by_source['run.plot("loss", "lr")'])
    assert both.count('<path class="curve') == 4  # two lines, and their entries in the legend
    (frame,) = shown(by_source['run.to_pandas("loss")[["x", "value"]].tail(3)'])
    assert "299" in frame


def test_what_is_shown_needs_no_network(executed: list[Any]) -> None:
    """No script, and nothing that a browser would fetch: what is saved looks the same everywhere."""
    html = "".join(text for cell in executed for text in shown(cell))
    assert re.findall(r"<script|<link|<iframe|<img|\bsrc=|\bhref=|url\(", html) == []


def test_the_outputs_that_are_kept_are_those_of_the_code() -> None:
    """The example is kept with its outputs, of each cell that shows something; none names a folder of a machine."""
    notebook = nbformat.read(NOTEBOOK, 4)
    kept = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(kept) >= 6
    assert re.findall(r"/(?:tmp|root|home|work)/", Path(NOTEBOOK).read_text(encoding="utf-8")) == []
