"""No public object that no page mentions, and no page that says less than the code it is made of."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from typing import Any

import pytest

from places import PACKAGE, ROOT
from tachograph.pipeline.settings import Keywords
from tachograph.runs.run import Run

DOCS = ROOT / "docs"
# The API reference is made of docstrings, and the changelog tells of the past: neither explains anything.
WRITTEN = [page for page in sorted(DOCS.glob("*.md")) if page.name not in {"api.md", "changelog.md"}]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in WRITTEN)
MODULES = (
    *("tachograph", "tachograph.elastic", "tachograph.monitor", "tachograph.logger", "tachograph.metric"),
    *("tachograph.otel", "tachograph.runs", "tachograph.testing"),
    *("tachograph.instrumentation", "tachograph.integrations"),
)

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source and pages


def public(module: Any) -> list[str]:
    """Return the public names of a module: its ``__all__``, or those that it defines itself."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("__")]
    return [n for n, of in vars(module).items() if n[0] != "_" and getattr(of, "__module__", "") == module.__name__]


def unmentioned(names: list[str]) -> list[str]:
    """Return the names that no written page has."""
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}\b", TEXT)]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_object_is_mentioned(name: str) -> None:
    """Each public object of a public module is in a page beside the API reference."""
    assert unmentioned(public(import_module(name))) == []


def test_everything_of_a_run_is_mentioned() -> None:
    """Each attribute and method of a run is in a page."""
    assert unmentioned([name for name in dir(Run) if name[0] != "_"]) == []


def test_every_setting_is_in_the_page_of_settings() -> None:
    """Each argument of ``start()``, and each variable that the code reads, is in the page of settings."""
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert [name for name in Keywords.__annotations__ if f"`{name}`" not in page] == []
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    read = set(re.findall(r'"(TACHOGRAPH_[A-Z][A-Z_]*[A-Z])"', source))
    assert sorted(name for name in read if not re.search(rf"`{name}\b", page)) == []


def test_internal_variables_are_in_no_page() -> None:
    """The variables that only Tachograph's own processes set begin with ``TACHOGRAPH__``."""
    assert re.findall(r"TACHOGRAPH__\w+", TEXT) == []


@pytest.mark.parametrize(
    "name",
    [
        *("cli.md", "patched.md", "settings.md", "design/interfaces.md"),
        *("performance.md", "images/performance-step.svg", "images/performance-calls.svg"),
    ],
)
def test_generated_pages_are_what_the_code_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, patched names and the figures of benches are as ``python scripts/pages.py`` makes them now."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    page = runpy.run_path(str(ROOT / "scripts" / "pages.py"))["PAGES"][name]()
    assert (DOCS / name).read_text(encoding="utf-8") == page


def test_the_readme_is_short() -> None:
    """The README has at most 200 lines: everything else is a page."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
