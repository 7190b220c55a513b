"""Locales without Unicode: a job starts, is stored and is shown, whatever its name and its folders are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launches import RUN
from programs import environment, exported, number, write
from tachograph import runs
from tachograph.cli import COMMANDS

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0"}
PROGRAM = """
    import os, sys, tachograph
    if sys.argv[1:]:
        tachograph.start(hub=True, run_id=sys.argv[1], metrics="jsonl", logs="none", jsonl=sys.argv[2])
    tachograph.put_metric("löss", 0.5)
    tachograph.log({"accuracy": 0.5}, step=1)
    print(sys.getfilesystemencoding())
"""


def ended(folder: Path, *line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a C locale to its end; the name of the folder with the store has letters beyond ASCII."""
    variables = {**environment(folder), **C_LOCALE, "TACHOGRAPH_STORE": str(folder / "störe"), **more}
    return subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)


def tachograph(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Tachograph's in a C locale."""
    return ended(folder, sys.executable, "-m", "tachograph", *arguments, **more)


def test_a_job_in_a_c_locale_is_recorded_and_shown(tmp_path: Path) -> None:
    """``tachograph run`` starts a program of any name, in the locale that it was given, and other commands show it."""
    program = str(write(tmp_path, PROGRAM, "prög.py"))
    done = ended(tmp_path, *RUN, "--port", "0", "--linger", "0", "--tag", "täg", "--", sys.executable, program)
    assert (done.returncode, done.stdout) == (0, "ascii\n"), done.stderr
    assert "Traceback" not in done.stderr
    (listed,) = runs.list(tmp_path / "störe")
    assert listed.id.startswith("prög-")
    assert listed.tags == ("täg",)
    assert [point.value for point in runs.open(listed.id, tmp_path / "störe").points("accuracy")] == [0.5]
    table = tachograph(tmp_path, "runs", "list")
    assert listed.id in table.stdout
    shown = tachograph(tmp_path, "runs", "show", listed.id)
    assert shown.stdout.startswith(f"run {listed.id}\n"), shown.stderr
    copied = tachograph(tmp_path, "runs", "export", listed.id, "--format", "csv", "--output", "löss.csv")
    assert copied.returncode == 0, copied.stderr
    assert "löss" in (tmp_path / "löss.csv").read_text(encoding="utf-8")


def test_a_program_in_a_c_locale_has_a_hub_of_its_own(tmp_path: Path) -> None:
    """``start()`` takes a run id and paths beyond ASCII there, from arguments and variables."""
    program = str(write(tmp_path, PROGRAM))
    done = ended(tmp_path, sys.executable, program, "ö", "öut.jsonl")
    assert (done.returncode, done.stdout) == (0, "ascii\n"), done.stderr
    assert "no hub" not in done.stderr
    assert number(exported(tmp_path / "öut.jsonl")["torchelastic", "löss"]) == 0.5
    assert [point.value for point in runs.open("ö", tmp_path / "störe").points("accuracy")] == [0.5]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_each_help_is_shown_in_a_c_locale(tmp_path: Path, name: str) -> None:
    """``--help`` of the program and of each command is printed, and nothing on stderr."""
    done = tachograph(tmp_path, *([name] if name else []), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: tachograph")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_output_has_letters_that_its_encoding_lacks_in_ascii(tmp_path: Path, encoding: str) -> None:
    """An ellipsis is three dots there, and the name of a run has escapes."""
    settings = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": encoding, "TACHOGRAPH_STORE": str(tmp_path / "store")}
    done = tachograph(tmp_path, "run", "--help", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: tachograph run [options] -- command ...\n")
    missing = tachograph(tmp_path, "runs", "show", "日", **settings)
    assert "there is no run '\\u65e5'" in missing.stderr
