"""Who says what the hardware does: each process itself, one process a node the machine, and under a hub the hub."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import programs
from hubs import ask, command
from launches import run_program
from servers import wait_until
from tachograph.identity.rank import speaks_for_node
from tachograph.pipeline.settings import read_settings

PROGRAM = """
import tachograph
with tachograph.start(metrics="jsonl", logs="none", traces="none", jsonl="out.jsonl"%s):
    tachograph.put_metric("loss", 1.0, "train")
"""


def scopes(folder: Path, arguments: str = "", **environ: str) -> set[str]:
    """Return the first words of the names of what a program exports of hardware."""
    given = {"TACHOGRAPH_SYSTEM_METRICS": "", **environ}
    done = programs.run(folder, PROGRAM % arguments, LD_LIBRARY_PATH="", **given)
    assert done.returncode == 0, done.stderr
    found = programs.exported(folder / "out.jsonl")
    return {name.partition(".")[0] for scope, name in found if scope == "tachograph.hardware"}


def test_nothing_is_observed_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Without the setting there are no hardware metrics."""
    assert scopes(tmp_path) == set()


@pytest.mark.parametrize(
    ("environ", "who"),
    [
        ({}, {"system", "process"}),
        ({"RANK": "8", "LOCAL_RANK": "0"}, {"system", "process"}),
        ({"RANK": "1", "LOCAL_RANK": "1"}, {"process"}),
        ({"RANK": "0", "LOCAL_RANK": "0", "TACHOGRAPH__HUB": "http://127.0.0.1:9"}, {"process"}),
    ],
)
def test_one_process_of_a_node_speaks_for_it(tmp_path: Path, environ: dict[str, str], who: set[str]) -> None:
    """Local rank 0, or a process without a rank, where no hub does it; each process speaks for itself."""
    assert scopes(tmp_path, ", system_metrics=True", **environ) == who


def test_the_variable_does_the_same_as_the_argument(tmp_path: Path) -> None:
    """TACHOGRAPH_SYSTEM_METRICS=true is ``system_metrics=True``; the argument wins."""
    assert scopes(tmp_path, TACHOGRAPH_SYSTEM_METRICS="true") == {"system", "process"}
    (tmp_path / "out.jsonl").unlink()
    assert scopes(tmp_path, ", system_metrics=False", TACHOGRAPH_SYSTEM_METRICS="true") == set()


def test_a_wrong_value_is_named() -> None:
    """What is neither true nor false is an error that names the variable."""
    with pytest.raises(ValueError, match="TACHOGRAPH_SYSTEM_METRICS is 'often'"):
        read_settings({"TACHOGRAPH_SYSTEM_METRICS": "often"})
    with pytest.raises(TypeError, match="system_metrics= must be True or False"):
        read_settings({}, system_metrics=1)  # type: ignore[arg-type]


def test_neither_agents_nor_helpers_speak_for_a_node() -> None:
    """Torchrun's own process and a data-loader worker leave that to local rank 0."""
    assert speaks_for_node({"dl.rank": 0}, {}, 7)
    assert not speaks_for_node({"dl.role": "agent"}, {}, 7)
    assert not speaks_for_node({"dl.local_rank": 0}, {"TACHOGRAPH__OWNER": "0:0:6"}, 7)


def test_the_hub_says_what_its_machine_does(tmp_path: Path) -> None:
    """A hub's page has the machine's series with the role ``node`` and no run, unless it shall not."""
    with command(tmp_path, TACHOGRAPH_SYSTEM_METRICS="", LD_LIBRARY_PATH="") as hub:
        wait_until(lambda: b"system_cpu_time_seconds_total{" in ask(hub.url, "/metrics").body)
        page = ask(hub.url, "/metrics").body.decode()
        hub.process.terminate()
        assert hub.end() == 0
    (line,) = [line for line in page.splitlines() if line.startswith("system_memory_limit_bytes{")]
    assert 'dl_role="node"' in line
    assert "dl_run_id" not in line
    assert "process_cpu_time" not in page
    with command(tmp_path / "silent", TACHOGRAPH_SYSTEM_METRICS="false") as hub:
        time.sleep(1)
        assert b"system_cpu_time" not in ask(hub.url, "/metrics").body
    with command(tmp_path, TACHOGRAPH_SYSTEM_METRICS="often") as hub:
        assert "TACHOGRAPH_SYSTEM_METRICS" in hub.first["error"]


def test_a_job_has_its_machine_once(tmp_path: Path) -> None:
    """Under ``tachograph run`` each process says what it does, and only the hub what the machine does."""
    program = """
        import re, os, time, urllib.request
        import tachograph
        tachograph.put_metric("loss", 1.0, "train")
        url = os.environ["TACHOGRAPH__HUB"].rstrip("/") + "/metrics"
        deadline, page = time.monotonic() + 20, ""
        while time.monotonic() < deadline and not ("system_cpu_time" in page and "process_cpu_time" in page):
            time.sleep(0.3)
            page = urllib.request.urlopen(url).read().decode()
        print(page)
    """
    done = run_program(tmp_path, program, TACHOGRAPH_SYSTEM_METRICS="true", LD_LIBRARY_PATH="")
    assert done.returncode == 0, done.stderr
    limits = re.findall(r"^system_memory_limit_bytes\{(.*)\}", done.stdout, re.MULTILINE)
    assert ['dl_role="node"' in labels for labels in limits] == [True]
    assert 'dl_role="node"' not in "".join(re.findall(r"^process_cpu_time.*", done.stdout, re.MULTILINE))
    assert "process_cpu_time_seconds_total{" in done.stdout
