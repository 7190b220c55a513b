"""docs/reliability.md: the page of what the attacks found is made of their results, and can be found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from places import ROOT

MAKER = ROOT / "bench" / "attack" / "page.py"
RESULTS = ROOT / "bench" / "attack" / "results"


def checked(*arguments: str, root: Path = ROOT) -> int:
    """Return the exit status of the page's maker."""
    maker = root / MAKER.relative_to(ROOT)
    return subprocess.run([sys.executable, str(maker), *arguments], timeout=60, check=False).returncode


def test_the_page_is_what_the_results_say() -> None:
    """docs/reliability.md is as ``python bench/attack/page.py`` makes it now, of every result that is there."""
    assert checked("--check") == 0
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["rows"]
        assert f"`{found['command']}`, seed {found['seed']}, at commit {found['commit']}" in page
        assert "-dirty" not in found["commit"]


def test_another_result_is_another_page(tmp_path: Path) -> None:
    """A result that has changed is noticed, until the page is made anew."""
    for path in (*MAKER.parent.glob("*.py"), *RESULTS.glob("*.json"), ROOT / "docs" / "reliability.md"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert checked("--check", root=tmp_path) == 0
    path = tmp_path / min(RESULTS.glob("*.json")).relative_to(ROOT)
    found = json.loads(path.read_text(encoding="utf-8"))
    found["rows"][0]["failed"] += 1
    path.write_text(json.dumps(found), encoding="utf-8")
    assert checked("--check", root=tmp_path) == 1
    assert checked(root=tmp_path) == 0
    assert checked("--check", root=tmp_path) == 0


def test_the_readme_leads_to_it() -> None:
    """The README has a link to the page."""
    assert "(docs/reliability.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
