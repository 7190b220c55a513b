"""``start(hub=True)``: a program or a notebook has a hub of its own, which never outlives it, nor is in its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubs import ask
from launches import run_program
from programs import environment, exported, number, run, write
from servers import wait_until
from tachograph import runs
from tachograph.pipeline.hub_process import HubProcess


def hubs_in(folder: Path) -> list[int]:
    """Return the pids of the hubs whose store is in a folder; not their own children, hubs too until they are git."""
    found: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
            if b"hub" in words and b"--parent" in words and str(folder / "store").encode() in words:
                found[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid for pid, above in found.items() if above not in found]


@contextmanager
def started(folder: Path, program: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a program that prints where its hub is, as JSON, and goes on; yield it and what it has printed."""
    line = [sys.executable, str(write(folder, program))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, env=environment(folder, **more), cwd=folder, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


WAITING = """
    import json, sys, tachograph
    pipeline = tachograph.start(hub=True)
    tachograph.put_metric("loss", 0.5, "train")
    print(json.dumps({"url": pipeline.hub_url, "run": pipeline.settings.run_id}), flush=True)
    sys.stdin.readline()
    tachograph.put_metric("loss", 0.25, "train")
"""


def test_a_program_has_a_hub_of_its_own(tmp_path: Path) -> None:
    """It draws the run while the program runs, says where in one line, and has every point when both have ended."""
    with started(tmp_path, WAITING) as (process, said):
        wait_until(lambda: f'loss{{dl_run_id="{said["run"]}"'.encode() in ask(said["url"], "/metrics").body)
        assert json.loads(ask(said["url"], f"/api/runs/{said['run']}").body)["run"]["id"] == said["run"]
        assert said["url"].startswith("http://127.0.0.1:")
        out, err = process.communicate("go\n", timeout=60)
        assert (out, process.returncode) == ("", 0)
        page = f"{said['url']}/#/run/{said['run']}"
        assert err == f"tachograph: live at {page} (metrics at {said['url']}/metrics)\n"
    wait_until(lambda: hubs_in(tmp_path) == [], 15)
    run_ = runs.open(said["run"], tmp_path / "store")
    assert [each.value for each in run_.points("loss")] == [0.5, 0.25]
    assert run_.program["argv"][-1].endswith("program.py")
    assert not [each for each in runs.list(tmp_path / "store") if each.in_use or each.id != said["run"]]


def test_a_hub_does_not_outlive_a_program_that_was_killed(tmp_path: Path) -> None:
    """After SIGKILL it ends by itself, and what had arrived is in the store."""
    with started(tmp_path, WAITING) as (process, said):
        where = f"/api/runs/{said['run']}"
        wait_until(lambda: json.loads(ask(said["url"], where).body).get("run", {}).get("points") == 1)
        assert len(hubs_in(tmp_path)) == 1
        process.kill()
        wait_until(lambda: hubs_in(tmp_path) == [], 15)
    assert [each.value for each in runs.open(said["run"], tmp_path / "store").points("loss")] == [0.5]


def test_a_hub_that_is_killed_is_started_again(tmp_path: Path) -> None:
    """It is back on the same port, with what came before and what comes after."""
    with started(tmp_path, WAITING) as (process, said):
        wait_until(lambda: b"\nloss{" in ask(said["url"], "/metrics").body)
        (hub,) = hubs_in(tmp_path)
        os.kill(hub, signal.SIGKILL)
        wait_until(lambda: hubs_in(tmp_path) not in ([], [hub]), 20)

        def is_back() -> bool:
            try:
                return b"\nloss{" in ask(said["url"], "/metrics").body
            except OSError:
                return False

        wait_until(is_back, 20)
        process.communicate("go\n", timeout=60)
    wait_until(lambda: hubs_in(tmp_path) == [], 15)
    assert [each.value for each in runs.open(said["run"], tmp_path / "store").points("loss")] == [0.5, 0.25]


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    """A cell that runs again has the same pipeline; after a shutdown there is a new hub, and the run goes on.

    The hub is no child that a program would wait for, or find.
    """
    done = run(
        tmp_path,
        """
        import json, os, urllib.request, tachograph
        first = tachograph.start(hub=True)
        assert tachograph.start(hub=True) is first
        try:
            os.wait()
        except ChildProcessError:
            pass
        tachograph.declare("steps", kind="counter").record(2)
        try:
            tachograph.start(hub=True, interval=5)
        except RuntimeError as error:
            print("hub" in str(error), "interval" in str(error))
        tachograph.shutdown()
        again = tachograph.start(hub=True)
        assert again is not first
        tachograph.declare("steps", kind="counter").record(3)
        again.flush()
        page = urllib.request.urlopen(again.hub_url + "/metrics").read().decode()
        (total,) = [line.split()[-1] for line in page.splitlines() if line.startswith("steps_total")]
        print(again.settings.run_id, total)
        """,
    )
    assert done.returncode == 0, done.stderr
    told, (run_id, total) = done.stdout.splitlines()[0], done.stdout.splitlines()[1].split()
    assert (told, float(total)) == ("False True", 5)
    wait_until(lambda: hubs_in(tmp_path) == [], 15)
    assert [each.id for each in runs.list(tmp_path / "store")] == [run_id]
    assert done.stderr.count("tachograph: live at ") == 2


def test_a_forked_child_sends_to_its_parents_hub(tmp_path: Path) -> None:
    """A child that records on its own account has no hub of its own, and its end is not that of its parent's."""
    done = run(
        tmp_path,
        """
        import os, time, urllib.request, tachograph
        pipeline = tachograph.start(hub=True)
        tachograph.put_metric("of_parent", 1, "g")
        child = os.fork()
        if not child:
            assert tachograph.start(hub=True).hub_url == pipeline.hub_url
            tachograph.put_metric("of_child", 1, "g")
            tachograph.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tachograph.put_metric("of_parent", 2, "g")
        assert pipeline.flush(20)
        urllib.request.urlopen(pipeline.hub_url + "/healthz").read()
        """,
        TACHOGRAPH_HELPERS="true",
        TACHOGRAPH_RUN="forked",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tachograph: live at ") == 1
    wait_until(lambda: hubs_in(tmp_path) == [], 15)
    run_ = runs.open("forked", tmp_path / "store")
    assert [each.value for each in run_.points("of_parent")] == [1, 2]
    assert [each.value for each in run_.points("of_child")] == [1]


ONCE = """
    import contextlib, glob, tachograph
    pipeline = tachograph.start(hub=True, metrics="jsonl", jsonl="out.jsonl")
    tachograph.put_metric("loss", 0.5, "train")
    words = []
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # of a process that has ended meanwhile
            words.append(open(name, "rb").read().split(b"\\0"))
    print(pipeline.hub_url, sum(b"--parent" in each and b"STORE" in each for each in words))
"""


def test_under_tachograph_run_there_is_one_hub(tmp_path: Path) -> None:
    """The program is told in a line that it has one, and where; its values are there once."""
    done = run_program(tmp_path, ONCE.replace("STORE", str(tmp_path / "store")))
    assert done.returncode == 0, done.stderr
    url, hubs = done.stdout.split()
    assert f"tachograph: live at {url}" in done.stderr
    assert hubs == "1"
    assert done.stderr.count("start(hub=True) did not start a hub in this process") == 1
    (stored,) = runs.list(tmp_path / "store")
    assert stored.points == 1


@pytest.mark.parametrize("local_rank", [0, 1])
def test_one_hub_for_the_ranks_of_a_machine(tmp_path: Path, local_rank: int) -> None:
    """Local rank 0 has one; another rank is told so in a line, and delivers to its other destinations."""
    ranked = {"RANK": str(4 + local_rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "8"}
    done = run(tmp_path, ONCE.replace("STORE", str(tmp_path / "store")), **ranked)
    assert done.returncode == 0, done.stderr
    url, hubs = done.stdout.split()
    assert (url == "None", hubs) == (local_rank == 1, str(1 - local_rank))
    assert done.stderr.count("start(hub=True) did not start a hub in this process") == local_rank
    assert len(done.stderr.splitlines()) == 1
    assert '"loss"' in (tmp_path / "out.jsonl").read_text()


def test_a_spawned_worker_has_none(tmp_path: Path) -> None:
    """A child of multiprocessing, which may become any rank, starts none, and says so."""
    done = run(
        tmp_path,
        """
        import multiprocessing, tachograph
        def work():
            print(tachograph.start(hub=True).hub_url, flush=True)
        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
        """,
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert done.stderr.count("start(hub=True) did not start a hub in this process") == 1


def test_a_hub_that_cannot_start(tmp_path: Path) -> None:
    """It is counted, said in one line, and the program goes on with its other destinations."""
    (tmp_path / "store").touch()
    done = run(
        tmp_path,
        """
        import urllib.request, tachograph
        pipeline = tachograph.start(hub=True, prometheus_port=0)
        tachograph.put_metric("loss", 0.5, "train")
        print(pipeline.hub_url)
        print(urllib.request.urlopen(pipeline.metrics_url).read().decode())
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("None\n")
    assert "\nloss{" in done.stdout
    assert "tachograph_errors_total{" in done.stdout
    assert 'where="hub"' in done.stdout
    assert done.stderr.count("start(hub=True) could not start a hub, continuing with the other destinations: ") == 1


def test_a_program_without_standard_streams(tmp_path: Path) -> None:
    """A service whose streams are closed has a hub as well."""
    program = """
        import os, tachograph
        pipeline = tachograph.start(hub=True)
        tachograph.put_metric("loss", 0.5, "train")
        open("url", "w").write(str(pipeline.hub_url))
    """
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, str(write(tmp_path, program))]
    assert subprocess.run(line, env=environment(tmp_path), cwd=tmp_path, timeout=60, check=False).returncode == 0
    assert (tmp_path / "url").read_text().startswith("http://127.0.0.1:")
    wait_until(lambda: hubs_in(tmp_path) == [], 15)
    assert [each.points for each in runs.list(tmp_path / "store")] == [1]


def test_an_interrupt_while_it_starts_leaves_none(tmp_path: Path) -> None:
    """A hub that nobody hears any more, as its start was interrupted, ends, though its parent lives on."""
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "tachograph", "hub", "--port", "0", "--quiet", "--parent", str(os.getpid())]
    hub = subprocess.Popen([*line, "--announce", str(writing)], env=environment(tmp_path), pass_fds=[writing])
    os.close(writing)
    assert hub.wait(30) == 0


def test_a_detached_hub_is_known_to_have_ended(tmp_path: Path) -> None:
    """It is no child, and yet its end is noticed, and asked for by its own number."""
    hub = HubProcess(["--store", str(tmp_path), "--port", "0", "--quiet"], environment(tmp_path), detached=True)
    with pytest.raises(ChildProcessError):
        os.waitpid(hub.pid or 0, os.WNOHANG)
    assert hub.runs
    assert not hub.wait(0.1)
    hub.ask_to_end()
    assert hub.wait(20)
    assert not hub.runs
    hub.close()
    hub.close()


WITHOUT_INTERPRETER = """
    #!{python}
    import os, pathlib, sys
    with open("starts", "a") as file:
        file.write(f"{{sys.argv}}\\n")
    if len(pathlib.Path("starts").read_text().splitlines()) > 3:
        os._exit(9)  # a chain of starts ends here, whatever Tachograph does
    import tachograph
    {change}
    pipeline = tachograph.start(hub=True, metrics="jsonl", jsonl="out.jsonl")
    print(pipeline.hub_url)
    tachograph.put_metric("loss", 0.5)
"""


@pytest.mark.parametrize(
    ("change", "starts", "why"),
    [
        ("sys.frozen = True", 1, "this program is frozen"),
        ("sys.executable = None", 1, "sys.executable is not set"),
        ("sys.executable = ''", 1, "sys.executable is not set"),
        ("sys.executable = os.path.abspath(sys.argv[0])", 2, "the hub exited during startup"),
    ],
)
def test_a_program_without_an_interpreter_starts_no_hub(tmp_path: Path, change: str, starts: int, why: str) -> None:
    """A frozen or embedding program has no hub, and one line says why; it is not started again and again.

    If ``sys.executable`` is the program itself, it is started once more, and that one starts no further one.
    """
    program = textwrap.dedent(WITHOUT_INTERPRETER).lstrip().format(python=sys.executable, change=change)
    write(tmp_path, program).chmod(0o755)
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "None\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "tachograph: start(hub=True) could not start a hub, continuing with the other destinations: "
    )
    assert why in line
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    assert number(exported(tmp_path / "out.jsonl")["torchelastic", "loss"]) == 0.5
