"""docs/reliability.md and its tables are made from the results of the attacks, and the README links to them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from places import ROOT

MAKER = ROOT / "bench" / "attack" / "page.py"
RESULTS = ROOT / "bench" / "attack" / "results"
TABLES = ROOT / "docs" / "design" / "reliability-tables.md"


def checked(*arguments: str, root: Path = ROOT) -> int:
    """Return the exit status of the page's maker."""
    maker = root / MAKER.relative_to(ROOT)
    return subprocess.run([sys.executable, str(maker), *arguments], timeout=60, check=False).returncode


def test_the_page_is_what_the_results_say() -> None:
    """docs/reliability.md is as ``python bench/attack/page.py`` makes it now, of every result that is there."""
    assert checked("--check") == 0
    page = TABLES.read_text(encoding="utf-8")
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["rows"]
        assert f"`{found['command']}`, seed {found['seed']}, at commit {found['commit']}" in page
        assert "-dirty" not in found["commit"]


def copied(root: Path) -> Path:
    """Copy the page, its maker and the results into another root; return the folder of the results there."""
    for path in (*MAKER.parent.glob("*.py"), *RESULTS.glob("*.json"), ROOT / "docs" / "reliability.md", TABLES):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return root / RESULTS.relative_to(ROOT)


def test_another_result_is_another_page(tmp_path: Path) -> None:
    """A result that has changed is noticed, until the page is made anew."""
    results = copied(tmp_path)
    assert checked("--check", root=tmp_path) == 0
    path = min(results.glob("*.json"))
    found = json.loads(path.read_text(encoding="utf-8"))
    found["rows"][0]["failed"] += 1
    path.write_text(json.dumps(found), encoding="utf-8")
    assert checked("--check", root=tmp_path) == 1
    assert checked(root=tmp_path) == 0
    assert checked("--check", root=tmp_path) == 0


def test_runs_of_an_attack_are_one_table(tmp_path: Path) -> None:
    """Tries, failures and sums add up, of other numbers the largest counts, and each run is there with its commit."""
    results = copied(tmp_path)
    for path in results.glob("peers*.json"):
        path.unlink()
    rows = [
        [
            {"attack": "a", "tried": 1200, "failed": 0, "outcome": "well", "sums": {"{:,} kept": 900}, "most": {}},
            {"attack": "b", "tried": 3, "failed": 1, "outcome": "wrong"},
        ],
        [
            {"attack": "b", "tried": 4, "failed": 0, "outcome": "well", "most": {"{:.1f} s": 2.5, "{:.0f} MiB": 7}},
        ],
        [
            {"attack": "a", "tried": 20, "failed": 0, "outcome": "well", "sums": {"{:,} kept": 200, "{} lost": 1}},
            {"attack": "b", "tried": 1, "failed": 0, "outcome": "well", "most": {"{:.1f} s": 1.5, "{:.0f} MiB": 8}},
        ],
    ]
    for seed, of_run in enumerate(rows):
        run = {"name": "peers", "seed": seed, "commit": f"abc{seed}", "date": "2026-11-23", "seconds": 9}
        run |= {"python": "3.11.7", "command": f"python peers.py --seed {seed}", "rows": of_run}
        (results / f"peers-{seed}.json").write_text(json.dumps(run))
    assert checked(root=tmp_path) == 0
    page = (tmp_path / TABLES.relative_to(ROOT)).read_text(encoding="utf-8")
    assert all(f"- `python peers.py --seed {seed}`, seed {seed}, at commit abc{seed}, " in page for seed in range(3))
    assert "| a | 1,220 | 0 | well, 1,100 kept, 1 lost |" in page
    assert "| b | 8 | 1 | wrong (at abc0), 2.5 s, 8 MiB |" in page


def test_the_readme_leads_to_it() -> None:
    """The README has a link to the page."""
    assert "(docs/reliability.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
