"""A run as one HTML file, opened from disk in a real browser without a network."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

from browser import tab
from hub_requests import SECOND, logs, rank
from hubs import serving
from recorded_runs import Recorded, points, record, record_histograms
from tachograph.cli import main
from tachograph.hub.hub import Hub
from tachograph.identity.launch import Launch
from tachograph.studio.share import bundled, shared_page
from watched_week import store_week

pytest.importorskip("uvicorn")

EVIL = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'><!-- \u2028 & é"
RUN = "one"
APART = 250_000_000  # nanoseconds between two points


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a run that has evil names, NaN, two ranks and a failure, and one of a week."""
    store = tmp_path_factory.mktemp("share") / "store"
    values = [math.exp(-x / 50) for x in range(200)]
    for number in range(2):
        odd = [*values[:77], math.nan, *values[78:]]
        record(store, RUN, *points(odd, "loss"), *points(values, EVIL, group=EVIL), number=number, apart=APART)
    failure = ("tachograph.process.failure", {"exception.type": "ValueError", "exception.message": EVIL})
    hub = Hub(store, run=RUN)
    about = {"argv": ["python", "train.py", "--token", "***", EVIL], "host": "node-7"}
    hub.launched(Launch(1, "node-7", about, ("baseline", EVIL[:60]), EVIL))
    end = ("tachograph.process.end", {"reason": "exception"})
    hub.receive_logs(logs(rank(1, run=RUN), ("tachograph.process.start", {}), failure, end, stream="more"))
    hub.close()
    store_week(store, "week")
    return store


@contextmanager
def opened(browser: Any, path: Path) -> Iterator[Any]:
    """Open a file in a tab without a network; it may ask for nothing and complain of nothing."""
    context = browser.new_context(offline=True, viewport={"width": 1024, "height": 900}, reduced_motion="reduce")
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(path.as_uri())
        until(page, lambda: page.locator("h1").count())
        yield page
        assert said == []
        assert [each for each in asked if not each.startswith(("file:", "data:"))] == []
    finally:
        context.close()


def until(page: Any, condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; the page's policy lets Playwright's own waiting evaluate nothing."""
    for _ in range(30):
        if condition():
            return
        page.wait_for_timeout(300)
    raise AssertionError(page.locator("body").inner_text()[:2000])


def drawn(page: Any) -> dict[str, Any]:
    """Return the curves of each chart that is loaded, by its title."""
    page.wait_for_timeout(300)
    wanted = ("label", "rank", "x", "y", "nonfinite")
    return {
        each["title"]: [[curve[name] for name in wanted] for curve in each["curves"]]
        for each in page.evaluate("__studio.drawn()")
        if each["loaded"]
    }


def test_the_file_shows_what_the_hub_shows(store: Path, tmp_path: Path, browser: Any) -> None:
    """The same curves, bit for bit, with NaN and ranks; faults lead to their place; zoom, keys and tables work."""
    path = tmp_path / "run.html"
    assert main(["runs", "share", RUN, "-o", str(path), "--store", str(store)]) == 0
    with serving(store) as hub, tab(browser, hub.url, size=(1024, 900)) as page:
        page.open(f"/#/run/{RUN}").loaded("loss", EVIL)
        served = drawn(page.page)
    with opened(browser, path) as page:
        until(page, lambda: drawn(page) == served)
        assert page.evaluate("window.hurt") is None
        assert "loss: first NaN at step 77" in page.locator(".faults").inner_text()
        page.locator(".faults > summary").click()
        page.locator(".fault-link").first.click()
        page.wait_for_selector(".fault-mark", state="attached")
        card = page.locator(".card").filter(has=page.get_by_role("heading", name="loss", exact=True))
        card.focus()
        page.keyboard.press("t")
        assert card.locator("tbody tr").count() == 200
        assert EVIL.split("\u2028", maxsplit=1)[0].strip() in page.locator("body").inner_text().replace("\xa0", " ")
        page.goto(f"{path.as_uri()}#/")
        page.wait_for_selector("tbody tr")
        assert page.locator("tbody tr").count() == 1


def test_the_file_has_heat_maps_of_values(tmp_path: Path, browser: Any) -> None:
    """Of all ranks together, as the hub makes them, however many columns it has."""
    told = [[0.1, 0.2, 0.4], [0.1, 0.3], [0.8]]
    record_histograms(tmp_path, "spread", *(Recorded("step.duration", told, number) for number in range(2)))
    path, address = tmp_path / "run.html", "#/run/spread?y.training/step.duration=heat:values"
    assert main(["runs", "share", "spread", "-o", str(path), "--store", str(tmp_path)]) == 0

    def rows(page: Any) -> list[str] | None:
        return next((each["heat"] for each in page.evaluate("__studio.drawn()")), None)

    with serving(tmp_path) as hub, tab(browser, hub.url) as page:
        page.open(f"/{address}").until(lambda: rows(page.page), "the hub's")
        served = rows(page.page)
    with opened(browser, path) as page:
        page.goto(f"{path.as_uri()}{address}")
        until(page, lambda: rows(page) == served)


def lines(page: Any, title: str) -> list[list[list[float]]]:
    """Return x, and what is drawn as the line, of each curve of a chart."""
    page.wait_for_timeout(300)
    (found,) = [each["curves"] for each in page.evaluate("__studio.drawn()") if each["title"] == title] or [[]]
    return [[curve["x"], curve["y"]] for curve in found]


@pytest.mark.parametrize("x", ["own", "step", "relative", "wall"])
def test_a_file_has_every_axis_and_smooths_as_the_studio_does(
    store: Path, tmp_path: Path, browser: Any, x: str
) -> None:
    """Each point, NaN among them, has the same place and the same average as in the Studio, but for rounding."""
    path = tmp_path / "run.html"
    assert main(["runs", "share", RUN, "-o", str(path), "--store", str(store)]) == 0
    words = f"#/run/{RUN}?x={x}&smooth=0.9"
    with serving(store) as hub, tab(browser, hub.url, size=(1024, 900)) as page:
        page.open(f"/{words}").loaded("loss")
        page.until(lambda: lines(page.page, "loss"), "the curves")
        served = lines(page.page, "loss")
    with opened(browser, path) as page:
        page.goto(f"{path.as_uri()}{words}")
        page.reload()
        until(page, lambda: lines(page, "loss"))
        found = lines(page, "loss")
        assert page.get_by_label("X axis of all charts").input_value() == x
    assert [len(xs) for xs, _ in found] == [len(xs) for xs, _ in served]
    for (xs, ys), (its_xs, its_ys) in zip(found, served, strict=True):
        assert xs == pytest.approx(its_xs, rel=1e-15, abs=2e-6)  # microseconds
        assert ys == pytest.approx(its_ys, rel=1e-6)


@pytest.mark.parametrize("x", ["own", "relative"])
def test_thinned_points_are_smoothed_by_what_they_stand_for(tmp_path: Path, browser: Any, x: str) -> None:
    """The average of a thinned curve is within some hundredths of that of all of its points."""
    noise = Random(3)  # noqa: S311 - no secret
    values = [math.sin(x / 9000) + noise.gauss(0, 0.5) for x in range(60_000)]
    values[0] = 9.0  # the largest of its stretch, so that the first x drawn is that of the first value
    record(tmp_path, "noisy", *points(values, "wave"), apart=APART)
    path = tmp_path / "run.html"
    path.write_text(shared_page(tmp_path, "noisy"))
    with opened(browser, path) as page:
        page.goto(f"{path.as_uri()}#/run/noisy?x={x}&smooth=0.99")
        page.reload()
        until(page, lambda: lines(page, "wave"))
        ((xs, ys),) = lines(page, "wave")
        (chart,) = page.evaluate("__studio.drawn()")
        low, high = xs[len(xs) // 2], xs[len(xs) // 2 + 200]
        page.goto(f"{path.as_uri()}#/run/noisy?x={x}&smooth=0.99&zoom.{chart['along']}={low},{high}")
        page.reload()
        until(page, lambda: lines(page, "wave") and len(lines(page, "wave")[0][0]) < len(xs))
        ((near_xs, near_ys),) = lines(page, "wave")
    assert len(xs) < len(values)
    known = dict(zip(xs, ys, strict=True))
    seen = {at: y for at, y in zip(near_xs, near_ys, strict=True) if low <= at <= high}
    assert len(seen) > 100
    assert seen == {at: pytest.approx(known[at], abs=0.01) for at in seen}
    truth = list(accumulate(values, lambda average, value: 0.99 * average + 0.01 * value))
    apart = 1.0 if x == "own" else APART / SECOND
    off = [abs(y - truth[round((at - xs[0]) / apart)]) for at, y in zip(xs, ys, strict=True)][100:]
    assert sum(off) / len(off) < 0.02, (sum(off) / len(off), max(off))
    assert max(off) < 0.2


def test_a_week_of_the_machine_is_in_it(store: Path, tmp_path: Path, browser: Any) -> None:
    """Its tiles are there, and its charts, thinned; the file is small."""
    path = tmp_path / "week.html"
    assert main(["runs", "share", "week", "-o", str(path), "--store", str(store)]) == 0
    assert path.stat().st_size < 1_000_000
    with opened(browser, path) as page:
        page.wait_for_selector(".tile >> text=of 8 processors")
        page.locator(".machine button").click()
        until(page, lambda: "system.cpu.utilization" in drawn(page))


@pytest.mark.long
def test_a_million_points_are_five_megabytes(tmp_path: Path) -> None:
    """However many points there are in however many curves, the file is no larger, and keeps the extremes."""
    spike = [float(x % 1000) + (5e6 if x == 61_234 else 0) for x in range(100_000)]
    for number in range(10):
        record(tmp_path, "big", *points(spike, "wave"), number=number)
    page = shared_page(tmp_path, "big")
    assert len(page.encode()) <= 5_000_000
    assert "5000234" in page


def test_a_file_is_written_whole_or_not_at_all(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is written over without ``--force``; where it cannot be written it says why, with 2."""
    monkeypatch.chdir(tmp_path)
    share = ["runs", "share", RUN, "--store", str(store), "-o"]
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "folder").mkdir()
    for place, why in (("mine.html", "--force"), ("folder", "--force"), ("no/where.html", "No such file")):
        assert main([*share, place]) == 2
        assert why in capsys.readouterr().err
    assert main([*share, "folder", "--force"]) == 2
    assert main(["runs", "share", "gone", "--store", str(store), "-o", "gone.html"]) == 2
    assert "gone" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "mine.html"]
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert main([*share, "mine.html", "--force"]) == 0
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    assert stat.S_IMODE((tmp_path / "mine.html").stat().st_mode) == 0o666 & ~_umask()
    assert main(["runs", "share", "week", "-o", "", "--store", str(store)]) == 2


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_of_the_data_can_end_its_element(store: Path) -> None:
    """Names are inside JSON without markup; the policy allows the two scripts of the page and no other."""
    page = shared_page(store, RUN)
    assert page.count("</script>") == 2
    assert "<img src=x" not in page
    assert "\u2028" not in page.split('id="shared">')[1].split("</script>")[0] or "\\u003c" in page
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "/static/" not in page.split("<script")[0]
    assert "hunter2" not in page


def test_modules_of_another_form_are_refused() -> None:
    """The page's modules become one script; a form of import that is not known is said."""
    modules = {"a.js": 'import { b as c } from "./b.js";\nexport const a = c;', "b.js": "export function b() {}"}
    script = bundled(["a.js"], modules.__getitem__)
    assert script.index('$modules["b.js"]') < script.index("const { b: c } = $modules")
    for source in ('import b from "./b.js";', "export default 1;", 'export * from "./b.js";'):
        with pytest.raises(ValueError, match="cannot be made part"):
            bundled(["x.js"], {"x.js": source}.__getitem__)
    with pytest.raises(ValueError, match="circle"):
        bundled(["x.js"], {"x.js": 'import { a } from "./x.js";'}.__getitem__)
