"""Take pictures of each state of the Studio's page, at three widths, light and dark, and sheets of them to look at.

    .venv/bin/python scripts/states.py [--only STATE ...] [--live]

They go to tests/output/states, which git ignores; --live adds a DDP job that runs.
"""
# ruff: noqa: E402, INP001, T201 - a script that prints

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import OUTPUT, Tab, chromium, tab
from page_states import PATHS, served_states
from watched_jobs import running

WIDTHS = {"1440": (1440, 900), "1024": (1024, 768), "390": (390, 844)}
LOADING = """[...document.querySelectorAll(".state")].some((each) => each.textContent === "loading …"
  && each.offsetParent && each.getBoundingClientRect().top < innerHeight)"""  # in view: others wait for that
SHEET = """<!doctype html><body style="margin:0;background:#888;display:flex;flex-wrap:wrap;gap:8px;align-items:start">
{}</body>"""


def take(found: Tab, path: str, out: Path) -> None:
    """Take the picture of a page once it has come to rest."""
    found.open(path)
    found.page.wait_for_timeout(900)
    found.until(lambda: not found.page.evaluate(LOADING), "charts")
    found.page.wait_for_timeout(300)
    found.page.screenshot(path=out)


def main() -> None:
    """Take all, and a sheet for each width."""
    parser = argparse.ArgumentParser(description="Take pictures of each state of the Studio's page.")
    parser.add_argument("--only", nargs="*", choices=[*PATHS, "live"], help="of the states")
    parser.add_argument("--live", action="store_true", help="with a DDP job that runs")
    chosen = parser.parse_args()
    out = OUTPUT / "states"
    out.mkdir(parents=True, exist_ok=True)
    (OUTPUT / ".gitignore").write_text("*\n")
    wanted = {name: path for name, path in PATHS.items() if not chosen.only or name in chosen.only}
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        with served_states(Path(name)) as url:
            pictures(browser, url, wanted, out)
        if chosen.live:
            folder = Path(name) / "live"
            folder.mkdir()
            with running(folder, ranks=2) as job:
                pictures(browser, job.url, {"live": f"/#/run/{quote('the run')}"}, out)
        sheets(browser, out)


def pictures(browser: object, url: str, wanted: dict[str, str], out: Path) -> None:
    """Take the pictures of a hub's pages at all widths, light and dark."""
    for width, size in WIDTHS.items():
        for dark in (False, True):
            with tab(browser, url, size=size, dark=dark) as found:  # type: ignore[arg-type]
                for name, path in wanted.items():
                    take(found, path, out / f"{name}-{width}-{'dark' if dark else 'light'}.png")
                if found.complaints:
                    print(f"the console at {width}: {found.complaints}")


def sheets(browser: object, out: Path) -> None:
    """Put all pictures of a width and scheme on one."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            files = sorted(out.glob(f"[!s]*-{width}-{scheme}.png"))
            shown = "".join(
                f'<figure style="margin:0"><figcaption style="font:14px sans-serif">{each.stem}</figcaption>'
                f'<img src="file://{each}" width="{240 if width == "390" else 620}"></figure>'
                for each in files
            )
            page = out / "sheet.html"
            page.write_text(SHEET.format(shown))
            tabbed = browser.new_page(viewport={"width": 1900, "height": 900})  # type: ignore[attr-defined]
            tabbed.goto(f"file://{page}")
            tabbed.screenshot(path=out / f"sheet-{width}-{scheme}.png", full_page=True)
            tabbed.close()


if __name__ == "__main__":
    main()
