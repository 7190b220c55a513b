"""What README.md shows works as it stands there."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path

import pytest

from places import ROOT
from programs import complaints
from tachograph import runs

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]


def without_pauses(program: str) -> str:
    """Return a program of a page without the pauses that let a reader watch it."""
    return program.replace("time.sleep(0.05)", "time.sleep(0)")


def commands_in(page: str) -> list[str]:
    """Return the commands of a page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


COMMANDS = commands_in(README)


def quiet_environment(store: Path) -> dict[str, str]:
    """Return an environment with a store of its own, any free port, and no settings of the developer's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return {**kept, "OTEL_EXPORTER_PROMETHEUS_PORT": "0", "TACHOGRAPH_STORE": str(store)}


def ends_well(program: str, folder: Path) -> None:
    """Run a program, which must end well and complain about nothing."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        env=quiet_environment(folder / "store"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")


@pytest.mark.parametrize("program", PYTHON, ids=range(len(PYTHON)))
def test_python_runs_as_it_is(program: str, tmp_path: Path) -> None:
    """Each Python block is a program that ends well and complains about nothing."""
    ends_well(without_pauses(program), tmp_path)


def test_the_first_program_is_the_example() -> None:
    """The first Python block is examples/first_run.py."""
    example = (ROOT / "examples" / "first_run.py").read_text()
    assert ast.dump(ast.parse(example)) == ast.dump(ast.parse(PYTHON[0]))


def test_the_first_program_is_recorded_by_the_first_command(tmp_path: Path) -> None:
    """Under ``tachograph run`` the first program stores its curve, its configuration and its result."""
    (tmp_path / "train.py").write_text(without_pauses(PYTHON[0]))
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "run", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=quiet_environment(tmp_path / "store"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (listed,) = runs.list(tmp_path / "store")
    run = runs.open(listed.id, tmp_path / "store")
    assert [point.x for point in run.points("train/loss")] == list(range(1000))
    assert run.config == {"lr": 0.1, "batch": 32}
    assert list(run.summary) == ["final.loss"]


def test_the_ten_lines_serve_their_metrics(tmp_path: Path) -> None:
    """While examples/ten_lines.py runs, its page shows the loss, the calls and the durations."""
    program = (ROOT / "examples" / "ten_lines.py").read_text() + '    input("ready")\n'
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=quiet_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("recorded: ").strip()
        with urllib.request.urlopen(url, timeout=30) as response:
            page = response.read().decode()
        process.communicate("\n", timeout=60)
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    names = {series.partition("{")[0] for series in samples}
    assert [value for series, value in samples.items() if series.startswith("loss{")] == [1 / 200]
    assert [value for series, value in samples.items() if series.startswith("function_calls_total{")] == [200]
    assert "function_duration_seconds_bucket" in names
    assert process.returncode == 0


def check_command(command: str) -> None:
    """Assert that the shell takes a command, and that its make targets and its files of this checkout exist."""
    subprocess.run(["bash", "-n", "-c", command], check=True)
    program, *arguments = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
    if program == "make":
        subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)
    named = {word.partition("=")[2] or word for word in arguments}
    ours = {word for word in named if re.match(r"(collector-config|deploy|examples|bench|scripts)/", word)}
    assert [word for word in ours if not list(ROOT.glob(word))] == []


def missing_files(page: str) -> list[str]:
    """Return the files and folders of this checkout that a page names, and that are not there."""
    ours = set(re.findall(r"`((?:\.ci|bench|collector-config|deploy|examples|scripts|src|tests)/[\w./-]*)`", page))
    return [path for path in sorted(ours) if not (ROOT / path).exists()]


def unread_variables(page: str) -> list[str]:
    """Return the settings that a page names, and that neither the code, the tests nor the Makefile know."""
    # Those of OTLP are put together from their signal and their end.
    named = set(re.findall(r"\b(?!OTEL_EXPORTER_OTLP)(?:OTEL|TACHOGRAPH)_[A-Z_]*[A-Z]\b", page))
    return [name for name in sorted(named) if not re.search(rf"\b{name}\b", _known_variables())]


@cache
def _known_variables() -> str:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests" / name for name in ("conftest.py", "servers.py"))]
    return "\n".join(path.read_text() for path in sources)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_sound(command: str) -> None:
    """Each command is one that the shell takes; its make targets, packages and files of this checkout exist."""
    check_command(command)


def test_files_and_variables_that_the_text_names_exist() -> None:
    """Each file or folder of this checkout that the text names is there, and each variable is read."""
    assert missing_files(README) == []
    assert unread_variables(README) == []


def test_a_reader_has_a_first_result_by_line_30() -> None:
    """The first screen has how to install it, how to see a run, and the start of the first program."""
    first_screen = "\n".join(README.splitlines()[:30])
    assert "$ pip install" in first_screen
    assert "$ tachograph run -- python train.py" in first_screen
    assert "import tachograph" in "\n".join(README.splitlines()[:35])
    assert len(README.splitlines()) <= 150
