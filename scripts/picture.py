"""Take the README's pictures of the Studio: docs/images/studio.png and studio-dark.png, or others by --name.

    make demo                                       # in a terminal: it ends with the address of the run's page
    .venv/bin/python scripts/picture.py ADDRESS     # in another one

    .venv/bin/tachograph run --run-id digits -- .venv/bin/python examples/hugging_face.py
    .venv/bin/python scripts/picture.py --name hugging-face --height 940 ADDRESS    # while it trains

The browser is Debian's Chromium, driven by Playwright, which `make test` installs.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1280, 580
CHARTS = 2  # that are in the picture
POINTER = (0.3, 0.45)  # of the first chart's width and height


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description="Take the README's pictures of the Studio.")
    parser.add_argument("address", help="of a run's page")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder (default: %(default)s)")
    parser.add_argument("--name", default="studio", help="of the file, and of its dark one (default: %(default)s)")
    parser.add_argument("--height", type=int, default=HEIGHT, help="of the pictures (default: %(default)s)")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="Chromium's program (default: %(default)s)")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        for scheme, name in (("light", f"{options.name}.png"), ("dark", f"{options.name}-dark.png")):
            page = browser.new_page(viewport={"width": WIDTH, "height": options.height}, color_scheme=scheme)
            page.goto(options.address)
            while page.evaluate("__studio.drawn().filter(({ curves }) => curves.length).length") < CHARTS:
                page.wait_for_timeout(100)
            plot = page.locator(".card .u-over").first
            box = plot.bounding_box()
            plot.hover(position={"x": POINTER[0] * box["width"], "y": POINTER[1] * box["height"]})
            page.wait_for_timeout(500)
            page.screenshot(path=options.out / name)
        browser.close()


if __name__ == "__main__":
    main()
