"""Programs that gevent or eventlet patches: one line says that nothing is recorded, and they run as ever."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from launches import run_program
from programs import run

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent, threads apart": "from gevent import monkey; monkey.patch_all(thread=False)",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
    "eventlet, sockets only": "import eventlet; eventlet.monkey_patch(socket=True)",
}
STARTS = "import tachograph; pipeline = tachograph.start(metrics='jsonl', jsonl='out.jsonl')"
WORKS = """
import datetime, time
import tachograph
stat = tachograph.monitor.Stat("stat", (tachograph.monitor.Aggregation.SUM,), datetime.timedelta(seconds=0.1))
for step in range(10):
    tachograph.put_metric("loss", step)
    tachograph.log({"accuracy": step})
    stat.add(step)
    time.sleep(0.02)
assert pipeline.flush()
print("done", flush=True)
"""


def skip_without(library: str) -> None:
    """Skip a test if a library is missing; importing it here would have it warn of each later fork of these tests."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def line(library: str) -> str:
    """Return the line of a library that is not supported."""
    return f"tachograph: {library} is not supported: it patches the standard library, so Tachograph records nothing"


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
@pytest.mark.parametrize("order", ["patched before", "patched after"])
def test_a_patched_program_that_starts_tachograph_goes_on(tmp_path: Path, patch: str, order: str) -> None:
    """Neither start() nor the patch raises, hangs or prints anything else, whichever comes first."""
    library = patch.split()[1].rstrip(";")
    skip_without(library)
    lines = [patch, STARTS] if order == "patched before" else [STARTS, patch]
    done = run(tmp_path, "\n".join(["import warnings; warnings.simplefilter('ignore')", *lines, WORKS]), timeout=30)
    assert (done.returncode, done.stdout) == (0, "done\n")
    told = [text for text in done.stderr.splitlines() if "not greened" not in text]  # a word of eventlet's own
    assert told == [line(library)]


@pytest.mark.parametrize("patch", [PATCHES["gevent"], PATCHES["eventlet"]], ids=["gevent", "eventlet"])
def test_a_patched_program_under_tachograph_run_goes_on(tmp_path: Path, patch: str) -> None:
    """Its green threads run, no thread of ours fails, and the run takes no longer than that of any other program."""
    library = patch.split()[1].rstrip(";")
    skip_without(library)
    spawns = {
        "gevent": "import gevent; gevent.joinall([gevent.spawn(print, 'green')])",
        "eventlet": "eventlet.spawn(print, 'green').wait()",
    }[library]
    program = "\n".join(
        [
            "import warnings; warnings.simplefilter('ignore')",
            patch,
            spawns,
            WORKS.replace("assert pipeline.flush()", ""),
        ]
    )
    done = run_program(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "green\ndone\n")
    assert [text for text in done.stderr.splitlines() if "records nothing" in text] == [line(library)]


def test_a_patch_of_what_delivery_does_not_need_changes_nothing(tmp_path: Path) -> None:
    """A program that has gevent patch the signal module alone is recorded as ever."""
    skip_without("gevent")
    program = "from gevent import monkey; monkey.patch_signal()\n" + STARTS + "\ntachograph.put_metric('loss', 1.0)"
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"loss"' in (tmp_path / "out.jsonl").read_text()
