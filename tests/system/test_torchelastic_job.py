"""Real torchrun jobs that know nothing of us: what the agent tells of them arrives, up to its last words."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from places import ROOT
from programs import environment, events, exported, write
from test_torchrun import torchrun

pytest.importorskip("torch")
# torchrun's signal handlers raise; and torch, imported under a tracer in each process, takes half a minute.
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("untraced")]

BOOTSTRAP = """
import os, sys
from tachograph.instrumentation._zero_code import instrument
instrument()
assert "torch" not in sys.modules
import tachograph
from tachograph.identity.program import is_agent
get = os.environ.get
name = "agent" if is_agent() else f"rank-{get('RANK', os.getpid())}-{get('TORCHELASTIC_RESTART_COUNT')}"
tachograph.start(jsonl=f"{os.environ['EXPORTS']}/{name}.jsonl")
"""
JOB = """
import os, sys
from torch.distributed.elastic import metrics

@metrics.prof(group="mine")
def step():
    metrics.put_metric("loss", 0.5)

for _ in range(3):
    step()
if os.environ["RANK"] == "1" and (sys.argv[1] == "always" or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
    sys.exit(3)
"""


KILLS_ITS_AGENT = """
import os, signal, time
if os.environ["RANK"] == "0":
    time.sleep(1)
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def job(folder: Path, *arguments: str, restarts: int, program: str = JOB) -> int:
    """Run two ranks of an unmodified script with our instrumentation in every process; return the exit code."""
    (folder / "bootstrap").mkdir()
    (folder / "exports").mkdir()
    write(folder / "bootstrap", BOOTSTRAP, "sitecustomize.py")
    done = torchrun(
        folder,
        program,
        *arguments,
        PYTHONPATH=str(folder / "bootstrap"),
        EXPORTS=str(folder / "exports"),
        OTEL_METRICS_EXPORTER="jsonl",
        OTEL_LOGS_EXPORTER="jsonl",
        OTEL_TRACES_EXPORTER="none",
        PET_MAX_RESTARTS=str(restarts),
    )
    assert "tachograph" not in done.stderr.replace(str(ROOT), ""), done.stderr
    return done.returncode


def points(file: Path, name: str) -> dict[str, Any]:
    """Return a metric's points: the values of their attributes, joined, to the value or the count."""
    metric = exported(file)["torchelastic", name]
    (data,) = (metric[kind] for kind in ("sum", "gauge", "histogram") if kind in metric)
    return {
        " ".join(next(iter(pair["value"].values())) for pair in point.get("attributes", [])): float(
            point.get("asInt", point.get("asDouble", point.get("count")))
        )
        for point in data["dataPoints"]
    }


def test_a_job_with_a_restart_is_told_in_full(tmp_path: Path) -> None:
    """A worker fails once: restarts, rendezvous, status of workers, flakiness, and torchelastic's calls arrive."""
    assert job(tmp_path, "once", restarts=1) == 0
    agent = tmp_path / "exports" / "agent.jsonl"
    assert points(agent, "torchrun.restarts") == {"default": 1}
    assert points(agent, "torchrun.rendezvous.duration") == {"default": 2}
    assert points(agent, "torchrun.worker.status") == {"default START": 4, "default SUCCEEDED": 2}
    assert points(agent, "torchrun.flakiness") == {"default": 50}
    assert points(agent, "torchrun.run_success_with_retries") == {"default": 1}
    assert points(agent, "torchrun.state")["default succeeded"] == 1
    calls = points(agent, "function.calls")
    assert calls["SimpleElasticAgent._restart_workers success"] == 1
    assert calls["SimpleElasticAgent.run success"] == 1
    assert points(agent, "function.duration").keys() == calls.keys()
    found = [(one["eventName"], one["attributes"]) for one in events(agent)]
    states = [told["state"] for name, told in found if name == "torchelastic.worker.status"]
    once = {"RENDEZVOUS": 2, "ASSIGN_WORKER_RANKS": 2, "START": 4, "SUCCEEDED": 3}
    assert Counter(states) == once
    groups = [told["state"] for name, told in found if name == "torchelastic.worker_group.state"]
    assert [groups[0], groups[-1]] == ["HEALTHY", "SUCCEEDED"]
    assert "FAILED" in groups
    assert any("closed the rendezvous" in told["message"] for name, told in found if name == "torchelastic.rendezvous")
    for rank in ("rank-0-1", "rank-1-0", "rank-1-1"):
        own = exported(tmp_path / "exports" / f"{rank}.jsonl")
        assert own["torchelastic", "loss"]["gauge"]["dataPoints"][0]["asDouble"] == 0.5
        assert own["mine", "function.calls"]["sum"]["dataPoints"][0]["asInt"] == "3"


def test_the_last_words_of_a_job_that_failed(tmp_path: Path) -> None:
    """A job that fails has its exit code, and its end is told: which worker failed how, and that the run failed."""
    assert job(tmp_path, "always", restarts=0) == 1
    agent = tmp_path / "exports" / "agent.jsonl"
    assert points(agent, "torchrun.run_failed_no_retries") == {"default": 1}
    assert points(agent, "torchrun.flakiness") == {"default": 100}
    assert points(agent, "torchrun.restarts") == {"default": 0}
    told = [one["attributes"] for one in events(agent) if one["eventName"] == "torchelastic.worker.status"]
    failed = {one["global_rank"]: (one["exit_code"], one["source"]) for one in told if one["state"] == "FAILED"}
    assert failed.pop(1) == (3, "WORKER")
    # The other rank had ended, or was still running: then torchrun has terminated it, and that is told as a failure.
    assert failed in ({}, {0: (-15, "WORKER")})


def test_an_agent_that_is_terminated_tells_it(tmp_path: Path) -> None:
    """SIGTERM to torchrun itself: its last word is that it failed, and why."""
    assert job(tmp_path, "always", restarts=0, program=KILLS_ITS_AGENT) != 0
    told = [one["attributes"] for one in events(tmp_path / "exports" / "agent.jsonl")]
    (failed,) = [one for one in told if one.get("state") == "FAILED"]
    assert failed["source"] == "AGENT"
    assert "SignalException" in failed["raw_error"]


def test_the_entry_point_names_it() -> None:
    """``opentelemetry-instrument`` finds the instrumentor."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="tachograph_torchelastic")
    assert entry.load().__name__ == "TorchElasticInstrumentor"


def test_it_waits_for_torch_and_can_be_undone(tmp_path: Path) -> None:
    """Instrumenting imports no torch and can be repeated; uninstrumenting leaves torch and Python as they were."""
    program = """
    import sys
    from tachograph.instrumentation._zero_code import instrument, uninstrument
    before = list(sys.meta_path)
    instrument(["__main__:nothing"])
    instrument(["__main__:nothing"])
    uninstrument()
    assert sys.meta_path == before and sys.gettrace() is None
    instrument()
    assert "torch" not in sys.modules
    import torch.distributed.elastic.agent.server.api as agent
    from torch.distributed.elastic import events, metrics
    from tachograph.recording import journal
    metrics.put_metric("loss", 1)
    agent.record(events.Event("one", events.EventSource.AGENT))
    uninstrument()
    metrics.put_metric("lost", 1)
    agent.record(events.Event("two", events.EventSource.AGENT))
    from tachograph import testing
    from tachograph.recording import registry
    print(testing.Captured(registry.default).names(), [event.name for event in journal.default.drain()])
    assert metrics.api.MetricStream.add_value.__module__ == metrics.api.__name__
    """
    done = subprocess.run(
        [sys.executable, str(write(tmp_path, program))],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip() == "['loss'] ['one']"
