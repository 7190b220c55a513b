"""Bridges of the real libraries: into the program's own providers, by hand, and under ``opentelemetry-instrument``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import environment, run, write

READER = """
import json, sys, numpy
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
provider = MeterProvider([reader])

def show():
    found = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[f"{scope.scope.name}/{metric.name}"] = getattr(point, "value", getattr(point, "count", None))
    print(json.dumps({name: value for name, value in found.items() if not name.startswith("tachograph/")}))
"""
WRITER = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("runs")
"""


def shown(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return the lines of JSON that a program which ended well has printed."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "{["]


@pytest.mark.torch
@pytest.mark.parametrize("early", [True, pytest.param(False, marks=pytest.mark.long)])
def test_values_reach_the_providers_that_were_given(tmp_path: Path, early: bool) -> None:
    """By hand, before or after the library's import: values are in the program's own provider, and in no global one."""
    begin = "from tachograph.instrumentation import TensorBoardInstrumentor as Bridge\n"
    instrument = "Bridge().instrument(meter_provider=provider)\n"
    body = """
for step in range(2005):
    writer.add_scalar("train/loss", step / 2, step)
writer.add_histogram("weights", numpy.array([1.0, 2.0, 3.0]), 0)
show()
Bridge().uninstrument()
writer.add_scalar("train/loss", 100.0, 100)
show()
patched = [name for name, value in vars(SummaryWriter).items() if name[:4] == "add_" and hasattr(value, "__wrapped__")]
print(json.dumps(patched))
from tachograph.instrumentation.bridges import _values
[values] = _values._everywhere
print(json.dumps([len(values._logged.rows), len(values._logged._parts)]))
"""
    order = instrument + WRITER if early else WRITER + instrument
    found, later, names, waiting = shown(run(tmp_path, READER + begin + order + body))
    assert found == {"train/loss": 1002.0, "tachograph.metric/weights": 3}
    assert later["train/loss"] == 1002.0
    assert names == []
    assert waiting[0] < 1024
    assert waiting[1] == 0  # the points of curves, which no provider takes, are not kept


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "distro"),
    [
        ("", ""),
        pytest.param("", "opentelemetry_distro", marks=pytest.mark.long),
        pytest.param("tensorboard", "", marks=pytest.mark.long),
        ("tensorboard", "tachograph"),
    ],
)
def test_opentelemetry_instrument_loads_it_where_it_is_asked_to(tmp_path: Path, asked: str, distro: str) -> None:
    """That command loads every entry point: without TACHOGRAPH_BRIDGES it changes nothing about the libraries."""
    program = WRITER + "import json; print(json.dumps([hasattr(SummaryWriter.add_scalar, '__wrapped__')]))"
    path = write(tmp_path, program)
    more = {"TACHOGRAPH_BRIDGES": asked, "OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}
    if distro and distro != "tachograph":
        more["OTEL_PYTHON_DISTRO"] = distro
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, str(path)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown(done) == [[bool(asked)]], done.stderr


def test_a_library_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    """By hand it is OpenTelemetry's own message, and the program goes on."""
    done = run(
        tmp_path,
        """
        import json, logging
        logging.basicConfig()
        from tachograph.instrumentation.bridges.tqdm import TqdmInstrumentor

        class Newer(TqdmInstrumentor):
            _instance = None

            def instrumentation_dependencies(self):
                return ("no-such-logger >= 1",)

        Newer().instrument()
        print(json.dumps([Newer().is_instrumented_by_opentelemetry]))
        """,
    )
    assert shown(done) == [[False]]
    assert len([line for line in done.stderr.splitlines() if "no-such-logger" in line]) == 1


def test_tqdm_shows_its_progress_and_its_postfix(tmp_path: Path) -> None:
    """Values behind a bar are gauges and curves, also as text; a bar's progress is there while it is open.

    The newest value waits for a second, as another library may log it, too.
    """
    program = READER + (
        """
import os
from tachograph.instrumentation import TqdmInstrumentor
TqdmInstrumentor().instrument(meter_provider=provider)
from tachograph import progress
from tqdm import tqdm
with open(os.devnull, "w") as nowhere:
    for step in tqdm(range(10), file=nowhere):
        bar = tqdm(total=3, file=nowhere)
        bar.update(2)
        bar.set_postfix({"acc": f"{step / 10:.3f}"}, loss=step / 4, note="text")
        if step == 4:
            for _ in progress(range(2)):
                pass
            show()
        bar.close()
TqdmInstrumentor().uninstrument()
show()
"""
    )
    found, after = shown(run(tmp_path, program))
    assert found["tachograph.metric/loss"] in {0.75, 1.0}
    assert found["tachograph.metric/acc"] in {0.3, 0.4}
    assert (after["tachograph.metric/loss"], after["tachograph.metric/acc"]) == (2.25, 0.9)
    assert (found["tqdm/progress.done"], found["tqdm/progress.total"]) in {(4, 10), (2, 3)}
    assert not [name for name in found if "note" in name]
    assert not [name for name in after if name.startswith("tqdm/")]


def test_a_forked_child_records_nothing_of_its_parents(tmp_path: Path) -> None:
    """A forked helper's calls go on as ever; what the parent records after it is whole."""
    program = READER + (
        """
import os
from tachograph.instrumentation import TqdmInstrumentor
TqdmInstrumentor().instrument(meter_provider=provider)
from tqdm import tqdm
with open(os.devnull, "w") as nowhere:
    bar = tqdm(total=3, file=nowhere)
    bar.set_postfix(loss=1.0)
    child = os.fork()
    bar.set_postfix(loss=2.0 if child else 3.0)
    if not child:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
TqdmInstrumentor().uninstrument()
show()
"""
    )
    [found] = shown(run(tmp_path, program))
    assert found["tachograph.metric/loss"] == 2.0
