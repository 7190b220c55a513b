"""A run as one HTML file: the Studio's page with its data inside, which needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tachograph.studio._api import Api, Question, Unanswered, text

MOST_PAIRS, LEAST_PAIRS, PAIRS_OF_A_CURVE = 32_000, 20, 4000  # of a smallest and a largest value: in all, of a curve
_ALONG = "step", "relative"  # axes that are in the file beside a curve's own; the time of day is made of the latter
MOST_SAMPLES, LEAST_SAMPLES, SAMPLES_OF_A_SERIES = 20_000, 10, 200
MOST_EVENTS = 2000
MOST_SPREADS, COLUMNS = 100, 60  # charts with a heat map of values; its columns
_AT_ONCE = 500  # series in a question
_IMPORT = re.compile(r"^import \{([^}]*)\} from \"\./([\w.-]+)\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\*? (\w+))", re.MULTILINE)
_LINK = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n')
_SCRIPT = re.compile(r'<script(?P<module> type="module")? src="/static/([^"]+)"></script>\n')
_ICON = "/static/icon.svg"


def shared_page(store: Path, run: str) -> str:
    """Return the page of a run.

    Of very many curves or samples each has fewer points than the Studio shows: a million points are some megabytes.
    Curves are along their own x, along the step and along the time.

    Raises:
        LookupError: there is no such run, or it cannot be read.
    """
    api = Api(store, run, time.time_ns, lambda: False)
    try:
        said = _data(api, run)
    except Unanswered as error:
        raise LookupError(str(error)) from error
    name = said["run"]["run"]["name"] or run
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _page({**said, "made": made}, title=f"{name} - Tachograph", remark=f"a copy of {made}")


def _data(api: Api, run: str) -> dict[str, Any]:
    def ask(what: str = "", **query: Any) -> dict[str, Any]:
        path = f"/api/runs/{quote(run, safe='', errors='replace')}{what}"
        asked = urlencode(query, doseq=True, errors="replace").encode()
        return api.ask(Question({"path": path, "query_string": asked}))

    found = ask()
    metrics = [(chart["group"], metric) for chart in found["charts"] for metric in chart["metrics"] if metric["curves"]]
    many = sum(max(1, curve["branches"]) for _, metric in metrics for curve in metric["curves"])
    pairs = min(PAIRS_OF_A_CURVE, max(LEAST_PAIRS, MOST_PAIRS // max(1, many)))
    names = dict.fromkeys((group, metric["metric"]) for group, metric in metrics)

    def lines(group: str, name: str, x: str, pairs: int) -> list[dict[str, Any]]:
        found = ask("/curves", metric=name, group=group, pairs=pairs, x=x, knots=1)["curves"]
        return [_rounded(each) for each in found]

    curves = {}
    for group, name in names:
        own = lines(group, name, "own", pairs)
        others = {x: _differences(own, lines(group, name, x, max(LEAST_PAIRS, pairs // 4))) for x in _ALONG}
        curves[text([group, name])] = {"curves": own, "along": others}
    series = [each["series"] for each in found["series"]]
    stretches = min(SAMPLES_OF_A_SERIES, max(LEAST_SAMPLES, MOST_SAMPLES // max(1, len(series))))
    samples = [
        each
        for place in range(0, len(series), _AT_ONCE)
        for each in ask("/samples", series=series[place : place + _AT_ONCE], stretches=stretches)["samples"]
    ]
    return {
        "id": run,
        "run": {**found, "writable": False},
        "curves": curves,
        "origin": _origin(lines, names),
        "samples": samples,
        "spreads": {",".join(map(str, each)): ask("/spreads", series=each, columns=COLUMNS) for each in _alike(found)},
        "events": ask("/events", limit=MOST_EVENTS)["events"],
        "faults": ask("/faults"),
        "calls": ask("/calls"),
    }


def _alike(found: Mapping[str, Any]) -> Iterator[list[int]]:
    """Yield the numbers of the series of each chart of histograms, as the page has them."""
    charts: dict[tuple[Any, ...], list[int]] = {}
    for each in found["series"]:
        if each["kind"] == "histogram":
            key = each["scope"], each["name"], each["attributes"].get("code.function.name")
            charts.setdefault(key, []).append(each["series"])
    return (sorted(each) for each in list(charts.values())[:MOST_SPREADS])


def _rounded(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve whose means, where it is thinned, have seven digits."""
    line = curve["line"]
    return curve if line is None else {**curve, "line": [float(f"{each:.7g}") for each in line]}


def _differences(own: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of curves along another axis only the columns that are not the same along their own."""
    return [
        {name: each[name] for name in ("x", "y", "line", "nonfinite", "exact") if each[name] != one[name]}
        for one, each in zip(own, others, strict=True)
    ]


def _origin(lines: Callable[[str, str, str, int], list[dict[str, Any]]], names: Iterable[tuple[str, str]]) -> float:
    """Return the time of day, in seconds, since which the relative times are counted."""
    for group, name in names:
        since, wall = (lines(group, name, x, LEAST_PAIRS) for x in ("relative", "wall"))
        for one, other in zip(since, wall, strict=True):
            if one["x"]:
                return float(other["x"][0] - one["x"][0])
    return 0.0


def _page(said: Mapping[str, Any], *, title: str, remark: str) -> str:
    static = files("tachograph.studio").joinpath("static")

    def read(name: str) -> str:
        return static.joinpath(*name.split("/")).read_text("utf-8")

    page = read("index.html")
    style = "\n".join(read(name) for name in _LINK.findall(page))
    libraries = "".join(read(found[2]) for found in _SCRIPT.finditer(page) if not found["module"])
    mains = [found[2] for found in _SCRIPT.finditer(page) if found["module"]]
    script = _inline(f"{libraries}\n{bundled(mains, read)}")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    icon = f"data:image/svg+xml;base64,{base64.b64encode(read('icon.svg').encode()).decode()}"
    page = _SCRIPT.sub("", _LINK.sub("", page)).replace(_ICON, icon)
    page = page.replace(
        '<meta charset="utf-8">\n',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
    )
    page = re.sub("<title>[^<]*</title>", lambda _: f"<title>{html.escape(title)}</title>", page)
    page = page.replace('<span class="quiet">Studio</span>', f'<span class="quiet">{html.escape(remark)}</span>')
    head, end = page.split("</head>")
    body, end = end.split("</body>")
    data = f'<script type="application/json" id="shared">{_embedded(said)}</script>'
    made = f"{head}<style>{style}</style>\n</head>{body}{data}\n<script>{script}</script>\n</body>{end}"
    return made.encode("utf-8", "replace").decode()


def _embedded(said: Mapping[str, Any]) -> str:
    """Return data as JSON that cannot end its element: HTML, "Restrictions for contents of script elements"."""
    return text(said).replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _inline(script: str) -> str:
    """Return a script that cannot end its element."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", script, flags=re.IGNORECASE)


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def bundled(mains: Iterable[str], read: Any) -> str:
    """Return modules, and those that they import, as one script: each a function that returns its exports.

    Args:
        mains: the names of the modules to begin with.
        read: returns the text of a module.

    Raises:
        ValueError: an import or export has another form than the page's, or modules import each other in a circle.
    """
    order: dict[str, str] = {}
    for name in mains:
        _add(name, read, order, ())
    return "\n".join(["const $modules = {};", *order.values()])


def _add(name: str, read: Any, order: dict[str, str], above: tuple[str, ...]) -> None:
    if name in order:
        return
    if name in above:
        raise ValueError(f"modules import each other in a circle: {' > '.join((*above, name))}")
    source = read(name)
    for found in _IMPORT.finditer(source):
        _add(found[2], read, order, (*above, name))
    source = _IMPORT.sub(lambda found: f'const {{{found[1].replace(" as ", ": ")}}} = $modules["{found[2]}"];', source)
    exported = list(_exported(source))
    source = _EXPORT.sub("", source)
    if left := re.search(r"^(?:import|export)\b.*", source, re.MULTILINE):
        raise ValueError(f"{name} cannot be made part of one script: {left[0]}")
    order[name] = (
        f'$modules["{name}"] = (() => {{\n"use strict";\n{source}\nreturn {{ {", ".join(exported)} }};\n}})();'
    )


def _exported(source: str) -> Iterator[str]:
    return (found[1] for found in _EXPORT.finditer(source))
