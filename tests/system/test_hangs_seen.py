"""Hangs of which a hub sees a part: two hubs, a hub behind a collector, one of another user, one without /proc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hubs import ask, command
from programs import environment
from receivers import receiving
from servers import free_port, otelcol
from test_hangs import HANGS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

RUN, GUILTY = "seen", 3
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
NO_PTRACE = ["setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace"]  # as in a container
HIDDEN = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
COLLECTOR = """
receivers: {otlp: {protocols: {http: {endpoint: "${env:AT}"}}}}
exporters: {otlp_http: {endpoint: "${env:HUB}"}}
service:
  pipelines:
    metrics: {receivers: [otlp], exporters: [otlp_http]}
    logs: {receivers: [otlp], exporters: [otlp_http]}
  telemetry: {metrics: {level: none}}
"""


@contextmanager
def node(folder: Path, kind: str, *options: str, number: int = 0, meeting: int = 0, **more: str) -> Iterator[Path]:
    """Run two ranks of a job that goes wrong; of a job of four, where they meet others at a port. Yield its stderr."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--monitor-interval", "60"]
    torchrun += ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1"] if meeting else []
    torchrun += ["--master-port", str(meeting or free_port()), str(HANGS.JOB), kind]
    said = folder / f"said-{number}"
    told = {
        "HANG_AT": "30",
        "HANG_GUILTY": str(GUILTY if meeting else 1),
        "HANG_MARK": str(folder / "mark"),
        "OMP_NUM_THREADS": "1",
    }
    with said.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-m", "tachograph", "run", "--run-id", RUN, *options, "--", *torchrun],
            env=environment(folder / str(number), **told, **more),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield said
        finally:
            HANGS._end(job)


def live(url: str) -> dict[str, Any]:
    """Return the ranks and the incidents of the run at a hub; empty where it knows of none."""
    answer = ask(url, f"/api/runs/{RUN}/doctor")
    return dict((json.loads(answer.body)["live"] or {}) if answer.status == 200 else {})


def hang(url: str, said: Path, within: float = 120) -> dict[str, Any]:
    """Return the hang that a hub says."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        found = live(url).get("open")
        if found and found["grade"] == "hang":
            return dict(found)
        time.sleep(0.2)
    pytest.fail(f"no hang: {live(url)}\n{said.read_text()[-3000:]}")


def own_hub(said: Path) -> str:
    """Return the hub of a ``tachograph run``, once it says where it is."""
    until = time.monotonic() + 60
    while "live at " not in said.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    return said.read_text().partition("live at ")[2].partition("/#/")[0]


@pytest.mark.long
def test_two_hubs_have_a_part_each(tmp_path: Path) -> None:
    """Each hub says which ranks it does not see; the one with the guilty rank says the hang."""
    port = free_port()
    with (
        node(tmp_path, "c_sleep", "--port", "0", number=0, meeting=port) as first,
        node(tmp_path, "c_sleep", "--port", "0", number=1, meeting=port) as second,
    ):
        found = hang(own_hub(second), second)
        assert (found["cause"], found["ranks"]) == ("blocked", [GUILTY])
        assert f"hangs_job.py:{HANGS.line_of('c_sleep')} in c_sleep. Rank 2 waits in all_reduce #" in found["text"]
        assert found["notes"] == ["Ranks 0-1 do not report to this hub."]
        beside = live(own_hub(first))
        assert beside["elsewhere"] == ["Ranks 2-3 do not report to this hub."]
        assert [each["state"] for each in beside["ranks"]] == ["waiting", "waiting"]
        assert beside["incidents"] == []


@pytest.mark.long
def test_a_hub_behind_a_collector_sees_all(tmp_path: Path) -> None:
    """With TACHOGRAPH_HANGS=all the pulses of two nodes reach a hub through a collector, which aligns them."""
    port, at = free_port(), f"127.0.0.1:{free_port()}"
    config = tmp_path / "collector.yaml"
    config.write_text(COLLECTOR)
    with ExitStack() as ending:
        hub = ending.enter_context(command(tmp_path))
        ending.enter_context(otelcol(config, {"AT": at, "HUB": hub.url}))
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{at}", "TACHOGRAPH_HANGS": "all"}
        said = [ending.enter_context(node(tmp_path, "c_sleep", number=k, meeting=port, **more)) for k in (0, 1)]
        found = hang(hub.url, said[0])
    assert (found["cause"], found["ranks"], found["notes"]) == ("blocked", [GUILTY], [])
    assert "Ranks 0, 1 and 2 wait in all_reduce #" in found["text"]


@contextmanager
def stranger(*before: str) -> Iterator[str]:
    """Run a hub that cannot look at our processes, by a command before it: as another user, say."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("NOT TESTED: only root can run a hub as another user")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: no file system may be mounted, and no right given up here")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        with command(Path(name), wrapper=before) as hub:
            yield hub.url


UNSEEN = [
    pytest.param(NOBODY, "gil_sleep", "GIL held", "py-spy could not read its stack: ", id="another user, GIL held"),
    pytest.param(
        NOBODY, "c_sleep", "blocked", "The hub cannot see the reads and writes of rank 1", id="another user, blocked"
    ),
    pytest.param(
        [*HIDDEN, *NOBODY], "stop", "silent", "The hub cannot see the process of rank 1", id="hidepid, stopped"
    ),
    pytest.param(
        [*HIDDEN, *NOBODY], "c_sleep", "blocked", "The hub cannot see the process of rank 1", id="hidepid, blocked"
    ),
    pytest.param(NO_PTRACE, "gil_sleep", "GIL held", "py-spy could not read its stack: ", id="no ptrace, GIL held"),
    pytest.param(
        NO_PTRACE, "c_sleep", "blocked", "The hub cannot see the reads and writes of rank 1", id="no ptrace, blocked"
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("before", "kind", "cause", "words"), UNSEEN)
def test_what_cannot_be_seen_is_named(tmp_path: Path, before: Sequence[str], kind: str, cause: str, words: str) -> None:
    """A hub that may not look at the ranks' processes names the rank, and what it could not see."""
    with stranger(*before) as url, node(tmp_path, kind, "--no-hub", "--endpoint", url) as said:
        found = hang(url, said)
        assert (found["cause"], found["ranks"]) == (cause, [1]), found
        assert words in found["text"]


ONE = """
import os, time, torch, torch.distributed as dist
import tachograph
tachograph.start(metrics="otlp", logs="otlp", interval=0.5)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
tachograph.put_metric("loss", 0.5, "train")
time.sleep(4)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("doctor", "expected"), [("", True), ("false", False)])
def test_a_hub_gets_pulses(tmp_path: Path, doctor: str, expected: bool) -> None:
    """A hub of ours gets pulses, unless TACHOGRAPH_HANGS says that it is to have none."""
    with command(tmp_path, "--run-id", RUN) as hub:
        assert beats(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": hub.url, "TACHOGRAPH_HANGS": doctor}) == 0
        seen = json.loads(ask(hub.url, f"/api/runs/{RUN}/doctor").body)
    assert (seen["live"] is not None) == expected


@pytest.mark.parametrize(("doctor", "expected"), [("", False), ("all", True)])
def test_others_get_pulses_where_asked_for(tmp_path: Path, doctor: str, expected: bool) -> None:
    """Another receiver of logs gets pulses with TACHOGRAPH_HANGS=all alone."""
    with receiving() as receiver:
        url = receiver.url.removesuffix("/v1/metrics")
        more = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "TACHOGRAPH_HANGS": doctor,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        assert beats(tmp_path, more) == 0
        requests = [(path, body) for path, _, body in receiver.requests]
    assert any(path == "/v1/metrics" for path, _ in requests)
    assert any(b"tachograph.pulse" in body for _, body in requests) == expected


def beats(folder: Path, more: Mapping[str, str]) -> int:
    """Run a program with a process group of its own for some seconds; return its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", ONE],
        cwd=folder,
        env=environment(folder, TACHOGRAPH_RUN=RUN, **more),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode


ENDS = """
import os, random, sys, time, torch, torch.distributed as dist
random.seed(3)
torch.manual_seed(3)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
weights = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(30):
    weights(torch.randn(2, 4)).sum().backward()
    time.sleep(0.1)
sys.stderr.write("almost over\\n")
print(random.random(), torch.rand(1).item(), weights.module.weight.grad.sum().item())
dist.destroy_process_group()
sys.exit(7)
"""


@pytest.mark.long
def test_exit_code_and_streams_are_the_programs(tmp_path: Path) -> None:
    """With pulses and without, and without Tachograph: the same exit code, stdout, stderr and random states."""
    found = set()
    for before, doctor in (
        ([], ""),
        ([sys.executable, "-m", "tachograph", "run", "--quiet", "--port", "0", "--"], "true"),
    ):
        done = subprocess.run(
            [*before, sys.executable, "-W", "ignore", "-c", ENDS],
            cwd=tmp_path,
            env=environment(tmp_path, TACHOGRAPH_HANGS=doctor),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found.add((done.returncode, done.stdout, done.stderr))
        (tmp_path / "meeting").unlink(missing_ok=True)
    ((code, said, complained),) = found
    assert (code, len(said.split()), complained) == (7, 3, "almost over\n")


RECORDS = """
import os, time, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    time.sleep(4)
    if dist.get_rank() == 1:
        raise RuntimeError("out of luck, token=a1b2")  # here
    time.sleep(60)

try:
    main()
except RuntimeError:
    os._exit(1)
"""


LINE = RECORDS.splitlines().index('        raise RuntimeError("out of luck, token=a1b2")  # here') + 1
DIED = f" died: RuntimeError: out of luck, token=***, at dies.py:{LINE} in main."


def records(folder: Path, *before: str, begins: str = "", **more: str) -> None:
    """Run a job under torchrun whose rank 1 raises an exception of which only torch's error file tells."""
    (folder / "dies.py").write_text(RECORDS.replace(" as dist", f" as dist{begins}"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*before, *torchrun, "--master-port", str(free_port()), "dies.py"],
        cwd=folder,
        env=environment(folder, OMP_NUM_THREADS="1", **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr


def test_an_error_file_is_read_where_it_is(tmp_path: Path) -> None:
    """A rank under torchrun that tells us nothing at its end: its exception and its line are in torch's error file."""
    records(tmp_path, sys.executable, "-m", "tachograph", "run", "--run-id", RUN, "--port", "0", "--")
    told = subprocess.run(
        [sys.executable, "-m", "tachograph", "diagnose", RUN, "--json", "--store", str(tmp_path / "store")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (died,) = json.loads(told.stdout)["incidents"]
    assert (died["cause"], died["ranks"]) == ("died", [1])
    assert died["text"].endswith(DIED)


def test_an_error_file_is_read_under_torchrun_alone(tmp_path: Path) -> None:
    """Without ``tachograph run``, by a hub of this machine to which the ranks send: the exception and its line, too."""
    with command(tmp_path, "--run-id", RUN) as hub:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": hub.url, "TACHOGRAPH_RUN": RUN}
        begins = "; import tachograph; tachograph.start(interval=0.5); tachograph.put_metric('loss', 0.5)"
        records(tmp_path, begins=begins, **more)  # a pulse goes to a hub of ours: its first answer says that it is one
        until = time.monotonic() + 30
        while not live(hub.url).get("incidents") and time.monotonic() < until:
            time.sleep(0.2)
        (died,) = live(hub.url)["incidents"]
    assert (died["cause"], died["ranks"]) == ("died", [1])
    assert died["text"].endswith(DIED)
