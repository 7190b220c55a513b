"""Forks: one hook for the whole package, whose order is written in one place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import programs
from places import PACKAGE
from tachograph.recording.forking import Part

PROGRAM = """
import json, os, sys
from tachograph.recording import forking
seen = []
def said(what):
    return lambda: seen.append(what)
def fails():
    raise ValueError("not today")
def part(name, which):
    forking.at_fork(
        name, before=said(which + " before"), in_parent=said(which + " in parent"), in_child=said(which + " in child")
    )
part("pipeline", "last")
forking.at_fork("journal", before=fails, in_parent=fails, in_child=fails)
part("registry", "first")
read, write = os.pipe()
if not os.fork():
    os.write(write, json.dumps(seen).encode())
    os._exit(0)
os.wait()
print(json.dumps([seen, json.loads(os.read(read, 10_000))]))
"""


def test_parts_are_called_in_the_written_order() -> None:
    """Before a fork the last part comes first, after it the first one; one that fails keeps none from its turn."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    before = ["last before", "first before"]
    assert json.loads(done.stdout) == [
        [*before, "first in parent", "last in parent"],
        [*before, "first in child", "last in child"],
    ]
    assert "could not prepare journal for a fork" in done.stderr


def test_every_part_is_in_the_order_and_nothing_else_hooks_into_forks() -> None:
    """Each name of the order belongs to one module, and no module has a hook of its own."""
    named: list[str] = []
    own = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        named += set(re.findall(r'\bat_fork\(\s*"(\w+)"', text))
        if "os.register_at_fork(" in text:
            own.add(path.relative_to(PACKAGE).as_posix())
    assert sorted(named) == sorted(get_args(Part))
    assert own == {"recording/forking.py"}


FORKED = """
import multiprocessing, os
import tachograph
from tachograph.identity.run_id import run_id
def child():
    tachograph.start(metrics="none")
    print(run_id(os.environ), flush=True)
tachograph.start(metrics="none")
print(run_id(os.environ), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
if not os.fork():
    child()
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("helpers", ["", "1"])
def test_forked_children_belong_to_the_run_of_their_parent(tmp_path: Path, helpers: str) -> None:
    """A run id that was minted before a fork is that of the children, who may call ``start()`` themselves."""
    done = programs.run(tmp_path, FORKED, TACHOGRAPH_HELPERS=helpers)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stdout.split()
    assert len(said) == 3
    assert len(set(said)) == 1
