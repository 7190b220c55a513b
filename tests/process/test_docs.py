"""What the pages in docs/ show works as it stands there, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from places import ROOT
from test_readme import check_command, commands_in, ends_well, missing_files, unread_variables, without_pauses

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.glob("**/*.md") if "_build" not in page.parts)
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, program in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    )
]

INSTRUMENTED = {"TorchMonitorInstrumentor": "torch", "WandbInstrumentor": "wandb"}  # without its library each complains


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_runs_as_it_is(program: str, tmp_path: Path) -> None:
    """Each Python block is a program that ends well and complains about nothing."""
    for name, library in INSTRUMENTED.items():
        if name in program and find_spec(library) is None:
            pytest.skip(f"NOT TESTED: {library} is not installed")
    ends_well(program, tmp_path)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to another file of this checkout, and to a heading of it, has a target."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, link


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_no_page_is_without_a_way_on(page: Path) -> None:
    """The last paragraph of each page leads to another one."""
    last = page.read_text(encoding="utf-8").strip().rpartition("\n\n")[2]
    assert re.search(r"\]\((\.\./)?[\w-]+\.md\)", last), last


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_what_there_is(page: Path) -> None:
    """Each command is one that the shell takes, and each file and variable that a page names is there."""
    text = page.read_text(encoding="utf-8")
    for command in commands_in(text):
        check_command(command)
    assert missing_files(text) == []
    assert unread_variables(text) == []


def test_each_row_of_conformance_has_its_test() -> None:
    """Every test that checks a row has one, and every row a test; whether it is true is for that test to say."""
    collect = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "conforms")
    files = sorted(map(str, (ROOT / "tests" / "system").glob("test_bridges_*.py")))
    done = subprocess.run(
        [sys.executable, *collect, *files], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    collected = [line.rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line]
    rows = [line for line in (DOCS / "bridges-conformance.md").read_text().splitlines() if "`test_bridges_" in line]
    assert sorted(line.rpartition("`")[0].rpartition("`")[2] for line in rows) == sorted(collected), done.stderr


@pytest.mark.filterwarnings("ignore:::jupyter_client", "ignore:::zmq", "ignore::ResourceWarning")
def test_start_here_works_step_by_step(tmp_path: Path) -> None:
    """The program and the commands of the first page do what it says, in the order in which they stand there.

    The others of its commands are servers, or jobs that tests of their own run.
    """
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "train.py").write_text(without_pauses(program), encoding="utf-8")
    programs = Path(sys.executable).parent
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    environ |= {"TACHOGRAPH_STORE": str(tmp_path / "store"), "PATH": f"{programs}:{environ['PATH']}"}
    said = {}
    for command in commands_in(page):
        words = shlex.split(command, comments=True)
        if words[:2] in (["tachograph", each] for each in ("init", "runs")) or "train.py" in words:
            done = subprocess.run(
                words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, (command, done.stderr)
            said[" ".join(words[:3])] = done.stdout + done.stderr
    assert set(said) == {
        *("tachograph run --", "tachograph init prometheus", "tachograph init grafana", "tachograph runs list")
    }
    assert said["tachograph runs list"].count("train-") == 3
    assert (tmp_path / "monitoring" / "prometheus" / "rules" / "loss.yml").is_file()
    assert list((tmp_path / "monitoring" / "grafana" / "dashboards").glob("*.json"))
    (cell,) = re.findall(r"^```py\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    printed, drawing = outputs_of(cell, tmp_path, environ)
    assert printed["text"].count("{'batch': 32, 'lr': 0.1}") == 2
    assert drawing["data"]["text/html"].count('<path class="curve') == 4  # two lines, and their entries in the legend


def outputs_of(cell: str, folder: Path, environ: dict[str, str]) -> list[Any]:
    """Return what a cell puts out in a notebook of a folder."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3")
    client.execute(cwd=str(folder), env=environ)
    return list(notebook.cells[0].outputs)


def test_upstream_bugs_have_a_program_each() -> None:
    """Each program of the page of torch.monitor's bugs is there, and each that is there has a row."""
    upstream = DOCS / "upstream"
    rows = set(re.findall(r"\]\((\w+\.py)\)", (upstream / "index.md").read_text(encoding="utf-8")))
    assert rows == {path.name for path in upstream.glob("*.py")}
