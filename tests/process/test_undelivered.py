"""Values that are never exported: of a program without start(), and of a helper process; counted, reported once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from programs import exported, number, run

EVERY_WAY = """
    import tachograph
    loss = tachograph.Metric("loss")
    for step in range(1000):
        tachograph.put_metric("gauge", step)
        tachograph.put_metric("step.success", 1)
        tachograph.put_metric("step.duration.ms", 1.5)
        loss.record(step, at=step)
        tachograph.log({"a": step, "b": 2.0})
"""


def test_a_forgotten_start_is_said(tmp_path: Path) -> None:
    """One line at exit gives the exact number of values that were not exported, and the two ways to export them."""
    done = run(tmp_path, EVERY_WAY)
    assert done.returncode == 0
    assert done.stderr == (
        "tachograph: 6,000 values were recorded but never exported. Call tachograph.start(), or run the script with "
        "`tachograph run -- python ...`.\n"
    )


ELSEWHERE = {
    "delivered": "tachograph.start(prometheus_port=0)",
    "delivered before": "tachograph.start(prometheus_port=0); tachograph.shutdown()",
    "read": "from tachograph.otel import PrometheusCollector; list(PrometheusCollector().collect())",
    "handled": "tachograph.configure(tachograph.elastic.ConsoleMetricHandler())",
    "silenced": "tachograph.configure(tachograph.elastic.NullMetricHandler())",
}


@pytest.mark.parametrize("way", ELSEWHERE)
def test_values_that_went_somewhere(tmp_path: Path, way: str) -> None:
    """No line where anything takes them: a pipeline, a collector, a handler; or where they shall not leave."""
    program = f"""
        import tachograph
        {ELSEWHERE[way]}
        tachograph.put_metric("gauge", 0.5)
        if {way!r} == "read":
            {ELSEWHERE["read"]}
    """
    assert "never exported" not in run(tmp_path, program).stderr


TASKS = """
from tachograph.metric import task, workflow

@task()
def train():
    return 1

@workflow
def study():
    return train()

assert study() == 1
"""


@pytest.mark.parametrize(
    "program",
    [
        "import tachograph",
        "from tachograph import progress\nfor _ in progress(range(3)): pass",
        TASKS,
    ],
)
def test_nothing_that_was_meant_to_leave(tmp_path: Path, program: str) -> None:
    """A program that records nothing, only draws a bar, or only has tasks, is told nothing."""
    assert run(tmp_path, program).stderr == ""


def test_durations_of_tasks_are_no_values_of_the_program(tmp_path: Path) -> None:
    """Beside them the others are counted, exactly."""
    assert run(tmp_path, TASKS + textwrap.dedent(EVERY_WAY)).stderr.startswith(
        "tachograph: 6,000 values were recorded but never exported"
    )


def test_a_switched_off_sdk_is_no_oversight(tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED is a choice."""
    assert run(tmp_path, EVERY_WAY, OTEL_SDK_DISABLED="true").stderr == ""


def test_a_closed_stderr_costs_nothing(tmp_path: Path) -> None:
    """Where nothing can be said, the program ends as it would."""
    done = run(tmp_path, EVERY_WAY + "    import os\n    os.close(2)\n    print('ended')\n")
    assert (done.returncode, done.stdout) == (0, "ended\n")


HELPER = """
    import os, sys
    import tachograph
    tachograph.start(metrics="jsonl", jsonl="out.jsonl")
    tachograph.put_metric("of.rank", 1.0)
    if os.fork() == 0:
        for _ in range(3):
            tachograph.put_metric("of.helper", 1.0)
        sys.exit()
    os.wait()
"""


@pytest.mark.parametrize("asked", ["", "true", "1"])
def test_a_forked_child_of_a_start(tmp_path: Path, asked: str) -> None:
    """It delivers nothing and says so, unless it is asked to; the parent's values are not counted again."""
    done = run(tmp_path, HELPER, TACHOGRAPH_HELPERS=asked)
    assert done.returncode == 0
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "of.rank"]) == 1.0
    assert ("3 values were recorded in a helper process (program, pid " in done.stderr) is not bool(asked)
