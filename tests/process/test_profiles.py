"""``--prof``: functions are profiled by name, wherever they are defined, and the program does not notice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import environment, exported, run, write

# The script's own functions are found by tracing, which coverage would occupy.
untraced = pytest.mark.usefixtures("untraced")

BOOTSTRAP = """
import os
from tachograph.instrumentation._zero_code import instrument
instrument(os.environ["PROF"].split())
import tachograph
tachograph.start(metrics="jsonl", logs="none", traces="none", jsonl=os.environ["EXPORT"])
"""
NOTHING = "has no function with a matching name that can be profiled"
MODULE = """
import asyncio
import functools
from json import dumps
from tachograph import prof
from torch_free import borrowed

def plain(value): return value
def _private(): pass
async def coroutine(): await asyncio.sleep(0)
def generator(): yield from range(3)
async def async_generator(): yield 1
@prof(group="by hand")
def decorated(): pass
alias = plain
async def drain():
    await coroutine()
    return [value async for value in async_generator()]

class Model:
    size = 3
    default = lambda self: 1
    def __init__(self): self.calls = 0
    def step(self): return self
    @staticmethod
    def static(): return 1
    @classmethod
    def made(cls): return cls()
    @property
    def calm(self): return 1
    class Layer:
        def forward(self): return 2

class Large(Model):
    def step(self): return super().step()
"""
BORROWED = """
def borrowed(): pass
"""
USE = """
import asyncio
import models
models.plain(1); models.alias(2); models._private(); list(models.generator()); models.decorated(); models.borrowed()
asyncio.run(models.drain())
models.dumps(1)
model = models.Model.made()
assert model.step() is model and model.static() == 1 and model.default() == 1 and model.calm == 1 and model.size == 3
assert models.Model.Layer().forward() == 2
models.Large().step()
"""


def profiled(folder: Path, program: str, *patterns: str, command: tuple[str, ...] = (), **more: str) -> Any:
    """Run a program with our bootstrap; return the process and its calls by function, and by outcome if a failure."""
    (folder / "bootstrap").mkdir(exist_ok=True)
    write(folder / "bootstrap", BOOTSTRAP, "sitecustomize.py")
    write(folder, MODULE, "models.py")
    write(folder, BORROWED, "torch_free.py")
    script = write(folder, program, "train.py")
    done = subprocess.run(
        [sys.executable, *(command or (str(script),))],
        cwd=folder,
        env=environment(
            folder,
            PYTHONPATH=f"{folder / 'bootstrap'}:{folder}",
            PROF=" ".join(patterns),
            EXPORT=str(folder / "out.jsonl"),
            **more,
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[str, int] = {}
    for (_, name), metric in exported(folder / "out.jsonl").items():
        for point in metric["sum"]["dataPoints"] if name == "function.calls" else ():
            told = {pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]}
            key = told["code.function.name"] + (" " + told["error.type"] if "error.type" in told else "")
            found[key] = int(point["asInt"])
    return done, found


def test_every_kind_of_function_is_profiled(tmp_path: Path) -> None:
    """Wildcards find what the module itself defines: functions, coroutines, generators, methods of each kind."""
    done, found = profiled(tmp_path, USE, "models:*")
    assert (done.returncode, done.stderr) == (0, "")
    assert found == {
        "models.plain": 2,
        "models.coroutine": 1,
        "models.generator": 1,
        "models.async_generator": 1,
        "models.drain": 1,
        "models.decorated": 1,
        "Model.step": 2,
        "Model.static": 1,
        "Model.made": 1,
        "Model.Layer.forward": 1,
        "Large.step": 1,
    }


@untraced
def test_what_is_named_is_profiled_and_nothing_else(tmp_path: Path) -> None:
    """Exact names, wildcards on both sides, and private names where they are spelled."""
    patterns = "models:plain", "m?dels:Mod*.st*", "*:_priv*", "models:*.__init__"
    done, found = profiled(tmp_path, USE, *patterns)
    assert (done.returncode, done.stderr) == (0, "")
    assert found == {
        "models.plain": 2,
        "Model.step": 2,
        "Model.static": 1,
        "models._private": 1,
        "Model.__init__": 2,
        "models.decorated": 1,  # as its own decorator says
    }


SCRIPT = """
import functools
import sys
from models import Model

def kept(function):
    @functools.wraps(function)
    def wrapper(*arguments): return function(*arguments)
    return wrapper

@kept
def train_step(
    fails,
    by=1,
):
    if fails: raise ValueError

if sys.argv:
    class Trainer(Model):
        def fit(self):
            for number in range(4):
                try: train_step(number == 3)
                except ValueError: pass

for _ in range(2):
    train_step(False)
assert sys.gettrace() is None
if __name__ == "__main__":
    Trainer().fit()

def never_called(): pass
"""


@untraced
@pytest.mark.parametrize("how", ["script", "module", "inside"])
def test_functions_of_the_script_are_profiled_from_their_first_call(tmp_path: Path, how: str) -> None:
    """``__main__`` and the script's own name mean the script, started by file or by ``-m``; every call counts."""
    (tmp_path / "inner").mkdir()
    command = {"script": (), "module": ("-m", "train"), "inside": ("-m", "inner.train")}[how]
    write(tmp_path / "inner", SCRIPT, "train.py")
    name = "inner.train" if how == "inside" else "train"
    done, found = profiled(tmp_path, SCRIPT, "__main__:train_step", f"{name}:Trainer.*", command=command)
    assert (done.returncode, done.stderr) == (0, "")
    assert found == {"__main__.train_step": 5, "__main__.train_step ValueError": 1, "Trainer.fit": 1}


@untraced
def test_workers_that_multiprocessing_spawns_find_it_profiled(tmp_path: Path) -> None:
    """A function of the script is profiled in spawned processes, too, and can be handed to them."""
    program = """
    import multiprocessing, sys

    def work(number):
        assert sys.gettrace() is None and hasattr(work, "__tachograph_profiled__")
        return number + 1

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(work, [1, 2]) == [2, 3]
        assert work(1) == 2
    """
    done, found = profiled(tmp_path, program, "__main__:work")
    assert (done.returncode, done.stderr) == (0, "")
    assert found["__main__.work"] >= 1


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "TACHOGRAPH__OWNER": "0:0:1"}, False),
    ],
)
def test_a_pattern_that_matches_nothing_is_said_once_a_node(tmp_path: Path, place: dict[str, str], said: bool) -> None:
    """At the end one line a pattern, by the first rank of the node or a program without ranks; the job runs on."""
    done, found = profiled(tmp_path, USE, "models:absent", "no.such:thing", "models:plain", **place)
    assert done.returncode == 0
    assert found.get("models.plain", 2) == 2
    lines = [re.sub(r"pid \d+", "pid", line) for line in done.stderr.splitlines() if "in a helper process" not in line]
    assert lines == said * [
        f"tachograph: --prof models:absent matched nothing in train (pid): module models {NOTHING}",
        "tachograph: --prof no.such:thing matched nothing in train (pid): the module was never imported",
    ]


def test_a_wrong_pattern_under_zero_code_is_one_line(tmp_path: Path) -> None:
    """The job goes on, and the other patterns count."""
    done, found = profiled(tmp_path, USE, "models.plain", "models:plain")
    assert done.returncode == 0
    assert done.stderr.startswith("tachograph: --prof is 'models.plain': use package.module:function")
    assert found["models.plain"] == 2


@untraced
def test_under_a_debugger_the_script_is_left_alone(tmp_path: Path) -> None:
    """Where something else traces, that stays, and it is said that the script's functions are not profiled."""
    program = """
    import sys
    from tachograph.instrumentation import _zero_code as own
    def tracer(*_): return None
    def begin(): own.instrument(["__main__:late"])
    sys.settrace(tracer)
    begin()
    assert sys.gettrace() is tracer
    sys.settrace(None)
    def late(): pass
    assert not hasattr(late, "__tachograph_profiled__")
    own.uninstrument()
    """
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "a debugger or coverage traces it" in done.stderr


@untraced
def test_begun_by_the_script_itself_and_undone(tmp_path: Path) -> None:
    """What is defined already and what comes later is profiled; uninstrumenting puts the very originals back."""
    program = """
    import sys
    from tachograph.instrumentation import _zero_code as own
    from tachograph.profiling.profiled import MARK
    def early(): pass
    class K:
        @staticmethod
        def m(): pass
    originals = early, vars(K)["m"]
    own.instrument(["__main__:*", "models:plain"])
    assert hasattr(early, MARK) and hasattr(K.m, MARK)
    def late(): pass
    import models
    assert hasattr(late, MARK) and hasattr(models.plain, MARK) and models.alias is models.plain
    own.uninstrument()
    assert (early, vars(K)["m"]) == originals and not hasattr(late, MARK) and not hasattr(models.plain, MARK)
    assert sys.gettrace() is None
    def latest(): pass
    import torch_free
    assert not hasattr(latest, MARK)
    """
    write(tmp_path, MODULE, "models.py")
    write(tmp_path, BORROWED, "torch_free.py")
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
