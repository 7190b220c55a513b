"""Standard streams that a program has closed, replaced or lost: what Tachograph reports there never raises."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from programs import exported, number, run

# Names the streams of a program by what is wrong with them, and puts them in place.
STREAMS = """
import io, os, sys

class Failing(io.TextIOBase):
    encoding = "utf-8"
    def write(self, text):
        raise RuntimeError("this stream fails")
    def flush(self):
        raise RuntimeError("this stream fails")
    def isatty(self):
        raise RuntimeError("this stream fails")

class FailingTerminal(Failing):
    def isatty(self):
        return True

def stream(kind):
    if kind == "closed":
        closed = open(os.devnull, "w")
        closed.close()
        return closed
    if kind == "full":
        return open("/dev/full", "w", buffering=1)
    if kind == "ascii":
        return io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "ascii", "strict", write_through=True)
    return {"none": None, "failing": Failing(), "failing terminal": FailingTerminal()}[kind]

sys.stderr = stream(sys.argv[1])
sys.stdout = stream(sys.argv[1])
"""

REPORTS = """
import tachograph
from tachograph import elastic, monitor

class Unreadable:
    def __float__(self):
        raise ValueError("schön")

class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class UnreadableNoText:
    def __float__(self):
        raise NoText

class FailingHandler(elastic.MetricHandler):
    def emit(self, metric_data):
        raise RuntimeError("schön")

tachograph.start(metrics="jsonl", traces="none", logs="none", jsonl="out.jsonl")
for place, value in enumerate([Unreadable(), UnreadableNoText(), "schön", object()]):
    for _ in range(2):
        elastic.put_metric(f"löss{place}", value)
        tachograph.log({f"löss{place}": value})
        tachograph.Metric(f"curve{place}").record(value)
    tachograph.config({f"löss{place}": value})
elastic.put_metric("löss.success", -1)
elastic.publish_metric("group", "löss", 0.25)
elastic.profile("group")
elastic.configure(FailingHandler(), "handled")
elastic.put_metric("löss", 0.5, "handled")
elastic.configure(elastic.ConsoleMetricHandler(), "printed")
elastic.put_metric("löss", 0.5, "printed")
steps = sum(1 for _ in tachograph.progress(range(100), "ö"))
monitor.register_event_handler(lambda event: 1 / 0)
elastic.put_metric("steps", steps)
tachograph.shutdown()
os._exit(0)  # CPython itself ends with 120 where stdout cannot be flushed
"""


@pytest.mark.parametrize("kind", ["closed", "none", "failing", "failing terminal", "full", "ascii"])
def test_no_stream_makes_a_report_raise(tmp_path: Path, kind: str) -> None:
    """Values that are no numbers, failing handlers and deprecated calls cost no step, whatever the streams are.

    The values are counted, and those recorded afterward arrive.
    """
    done = run(tmp_path, STREAMS + REPORTS, kind)
    assert done.returncode == 0, done.stderr
    metrics = exported(tmp_path / "out.jsonl")
    assert number(metrics["torchelastic", "steps"]) == 100
    dropped = metrics["tachograph", "tachograph.dropped"]["sum"]["dataPoints"]
    reasons = [{pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]} for point in dropped]
    (count,) = (
        int(point["asInt"]) for point, reason in zip(dropped, reasons, strict=True) if reason["reason"] == "no_number"
    )
    assert count == 24


def test_a_warning_names_its_source(tmp_path: Path) -> None:
    """A warning begins with ``tachograph:`` where the program has set up no logging, and else has the logger's name."""
    program = "import sys, logging\nif sys.argv[1:]:\n    logging.basicConfig()\n"
    program += "import tachograph\nwith tachograph.start(metrics=()):\n    tachograph.put_metric('x', 'abc')\n"
    said = "x: dropped a value: 'abc' (str) is not a number (further warnings are suppressed; see "
    for more, before in (((), "tachograph: "), (("logging",), "WARNING:tachograph:")):
        done = run(tmp_path, program, *more)
        assert done.stderr == f"{before}{said}tachograph_dropped_total on /metrics)\n"


def test_a_strict_ascii_stream_shows_a_report_escaped(tmp_path: Path) -> None:
    """A report with other characters is one line of escapes there, not a traceback of ``logging`` about the stream."""
    program = STREAMS + 'import tachograph\ntachograph.put_metric("löss", "schön")\nos._exit(0)'
    done = run(tmp_path, program, "ascii")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tachograph: l\\xf6ss: dropped a value: ")


def test_a_handler_of_the_program_that_raises_costs_no_value(tmp_path: Path) -> None:
    """A ``logging.Handler`` of the program that fails at a report of Tachograph's does not fail the training step."""
    program = """
    import logging, os, sys, tachograph
    class Failing(logging.Handler):
        def emit(self, record):
            raise RuntimeError("this handler fails")
    logging.getLogger().addHandler(Failing())
    tachograph.put_metric("loss", "high")
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_of_a_signal_handler_passes_a_report(tmp_path: Path) -> None:
    """What the program's own signal handler raises while a report is written is the program's, and reaches it."""
    program = """
    import os, signal, sys, tachograph
    class TimeOut(Exception):
        pass
    def time_out(number, frame):
        raise TimeOut
    signal.signal(signal.SIGALRM, time_out)
    class Stream:
        def write(self, text):
            os.kill(os.getpid(), signal.SIGALRM)
        def flush(self):
            pass
    sys.stderr = Stream()
    try:
        tachograph.put_metric("loss", "high")
    except TimeOut:
        os._exit(3)
    """
    assert run(tmp_path, program).returncode == 3


def test_a_hub_starts_without_a_working_stderr(tmp_path: Path) -> None:
    """``start(hub=True)`` has its hub even if the line with the page's address cannot be written."""
    program = """
    pipeline = tachograph.start(hub=True)
    found = pipeline.hub_url is not None
    tachograph.shutdown()
    os._exit(0 if found else 3)
    """
    assert run(tmp_path, STREAMS + "import tachograph" + textwrap.dedent(program), "failing").returncode == 0
