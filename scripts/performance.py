"""The figures of docs/performance.md and docs/design/measurements.md, from the results in bench/results.

``python scripts/pages.py`` writes them. ``bench/quiet.sh bench/results`` measures anew.
"""
# ruff: noqa: INP001 - a part of a script

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.runs.drawing import COLOURS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
MEASUREMENTS = ROOT / "docs" / "design" / "measurements.md"
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
WIDTH, EDGE = 480, 14
BAR, FIRST, DECADES = 212, 1e1, 7.3  # the longest bar's pixels; nanoseconds where the axis begins; powers of ten on it
OURS, THEIRS = COLOURS[0], ("#6b7778", "#8c9b9d")
STEP = {"seconds": "time by the clock", "processor": "time of the processor"}


class Call(NamedTuple):
    """One row: a goal of a bench, and the names of both sides."""

    bench: str
    goal: str
    ours: str
    theirs: str

    def taken(self) -> tuple[float, float]:
        """Return the nanoseconds of both sides."""
        goals = [goal for title, each in result(self.bench).items() if title != "machine" for goal in each]
        (goal,) = [goal for goal in goals if goal["what"] == self.goal]
        return goal["measured"] * UNITS[goal["unit"]], goal["reference"] * UNITS[goal["unit"]]


CALLS = (
    Call(
        *("recording", "bound distribution / torch.monitor.Stat.add"),
        *("a value into a bound histogram, with its buckets", "torch.monitor.Stat.add (C++, no buckets)"),
    ),
    Call(
        *("recording", "bound distribution / prometheus_client bound observe"),
        *("the same", "prometheus_client's bound observe"),
    ),
    Call(
        *("recording", "put_metric, gauge / torchelastic put_metric, Null"),
        *("put_metric into a gauge", "torchelastic's, into its Null handler"),
    ),
    Call(
        *("recording", "put_metric, distribution / torchelastic's, Null"),
        *("put_metric into a histogram", "torchelastic's, into its Null handler"),
    ),
    Call(
        *("recording", "put_metric, distribution / SDK histogram, 3 attributes"),
        *("the same", "an OpenTelemetry histogram, three attributes"),
    ),
    Call(
        *("profiling", "@prof, no tracing / torchelastic's @prof, Null"),
        *("@prof, no tracing", "torchelastic's, into its Null handler"),
    ),
    Call(
        *("profiling", "@prof, sampled span / a bare span"),
        *("@prof with a sampled span", "a bare span with the same attributes"),
    ),
    Call(
        *("metric", "record, held back / OpenTelemetry's gauge"),
        *("Metric.record that the throttle holds back", "an OpenTelemetry gauge's set"),
    ),
    Call(
        *("logger", "log / Point and write_api.write"),
        *("MetricsLogger.log, two fields, three tags", "influxdb-client: Point, and WriteApi.write"),
    ),
    Call(
        *("importing", "import tachograph / import opentelemetry.metrics"),
        *("import tachograph", "import opentelemetry.metrics"),
    ),
    Call("rendering", "a page", "a page of 11,000 lines", "prometheus_client"),
)


@cache
def result(bench: str) -> dict[str, Any]:
    """Return the findings of a bench, by title."""
    found: dict[str, Any] = json.loads((RESULTS / f"{bench}.json").read_text(encoding="utf-8"))
    return found


def page() -> str:
    """Return the page of performance with its current tables."""
    return _with_tables(PAGE, {"step": step(), "calls": calls()})


def measurements() -> str:
    """Return the page of measurements with its current table of versions."""
    return _with_tables(MEASUREMENTS, {"versions": versions()})


def _with_tables(path: Path, tables: Mapping[str, str]) -> str:
    """Return a page with its tables replaced, each between two comments."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = re.sub(f"(<!-- {name}: .*? -->\n).*?(\n<!-- end -->)", rf"\1\n{table}\2", text, flags=re.DOTALL)
    return text


def step() -> str:
    """Return the table of a whole step."""
    found = result("overhead")["pairs"]
    rows = []
    for what, name in STEP.items():
        added, same = found["added"][what], _in_the_mean(what, "control")
        rows.append(f"| {name} | {percent(added['mean'])} | {percent(added['at_most'])} | {percent(same)} |\n")
    head = f"| {len(found['pairs'])} pairs, a step of {found['step_ms']:.0f} ms | mean | upper bound (95 %) |"
    return f"{head} off vs. off |\n|---|---|---|---|\n{''.join(rows)}"


def _in_the_mean(what: str, which: str) -> float:
    """Return how much more one side of the pairs takes, as a share."""
    return math.expm1(
        statistics.mean(math.log(one[what] / off[what]) for one, off in result("overhead")["pairs"][which])
    )


def calls() -> str:
    """Return the table of calls."""
    rows = []
    for call in CALLS:
        ours, theirs = call.taken()
        rows.append(f"| {call.ours} | {duration(ours)} | {duration(theirs)} {call.theirs} | {ours / theirs:.2f} |\n")
    return "| call | Tachograph | compared with | ratio |\n|---|---|---|---|\n" + "".join(rows)


def versions() -> str:
    """Return the table of benches: when and where each ran, and of which peers it has versions."""
    names = ["overhead", *dict.fromkeys(call.bench for call in CALLS)]
    rows = []
    for name in names:
        where = result(name)["machine"]
        machine = f"{where['processor']}, {where['cores']} cores"
        rows.append(f"| `bench/{name}.py` | {where['date']} | {machine} | {where['load']} |\n")
    peers = ", ".join(f"{name} {number}" for name, number in sorted(where["versions"].items()))
    head = "| bench | date | machine | load before |\n|---|---|---|---|\n"
    return f"{head}{''.join(rows)}\nCPython {where['python']}, {peers}.\n"


def duration(nanoseconds: float, digits: int = 3) -> str:
    """Return a time in its unit, with so many digits."""
    unit, size = next((unit, size) for unit, size in reversed(UNITS.items()) if nanoseconds >= size * 0.9995)
    number = nanoseconds / size
    return f"{number:,.{max(0, digits - 1 - math.floor(math.log10(number)))}f} {unit.replace('us', 'µs')}"


def percent(share: float) -> str:
    """Return a share with its sign."""
    return f"{share * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")


def calls_picture() -> str:
    """Return the picture of the calls: two bars a row, on a scale of powers of ten."""

    def length(nanoseconds: float) -> float:
        return max(math.log10(nanoseconds / FIRST), 0.02) / DECADES * BAR

    height = len(CALLS) * 44 + 40
    parts = []
    for power in range(math.ceil(DECADES)):
        at, name = EDGE + power / DECADES * BAR, duration(FIRST * 10**power, digits=1)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{height - 26}"/>')
        parts += [_text(at, height - 10, name, "quiet", "middle")] if power % 2 == 1 else []
    for row, call in enumerate(CALLS):
        top, (ours, theirs) = 12 + row * 44, call.taken()
        parts.append(_text(EDGE, top + 10, _again(call, row), "", "start"))
        for below, side, time, said in ((15, "ours", ours, ""), (27, "theirs", theirs, f" {call.theirs}")):
            parts.append(
                f'<rect class="{side}" x="{EDGE}" y="{top + below}" width="{length(time):.1f}" height="9" rx="2"/>'
            )
            parts.append(_text(EDGE + length(time) + 6, top + below + 9, duration(time) + said, "quiet", "start"))
    return _svg("Time of a call, Tachograph's above the other's, on a scale of powers of ten", height, parts)


def _again(call: Call, row: int) -> str:
    return CALLS[row - 1].ours if call.ours == "the same" else call.ours


def step_picture() -> str:
    """Return the picture of the pairs: each a dot, how much more of the processor a step takes than without."""
    found = result("overhead")["pairs"]
    rows = {"Tachograph on against off": "pairs", "off against off: the noise of the machine": "control"}
    shares = {which: [one["processor"] / off["processor"] - 1 for one, off in found[which]] for which in rows.values()}
    most = max(0.05, 0.05 * math.ceil(max(abs(each) for side in shares.values() for each in side) / 0.05))
    parts = []

    def place(more: float) -> float:
        return WIDTH / 2 + more / most * (WIDTH / 2 - 34)

    for more in (-most, 0, most):
        parts.append(f'<line class="grid" x1="{place(more):.1f}" x2="{place(more):.1f}" y1="12" y2="158"/>')
        parts.append(_text(place(more), 174, percent(more) if more else "0", "quiet", "middle"))
    for row, (name, which) in enumerate(rows.items()):
        top, mean = 22 + row * 72, _in_the_mean("processor", which)
        parts.append(_text(EDGE, top + 4, f"{name}, {percent(mean)} in the mean", "", "start"))
        parts += [
            f'<circle class="{"ours" if which == "pairs" else "theirs"} dot" cx="{place(more):.1f}"'
            f' cy="{top + 18 + number * 7 % 30}" r="3.5"/>'
            for number, more in enumerate(shares[which])
        ]
        parts.append(f'<path class="mean" d="M{place(mean):.1f} {top + 11}v46"/>')
    return _svg("More of the processor that a step takes: each dot is a pair of blocks", 184, parts)


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, height: int, parts: Iterable[str]) -> str:
    def rules(scheme: int) -> Iterator[str]:
        colours = (("#ffffff", "#171d1f"), ("#17201f", "#e4eaea"), ("#5c6a6b", "#94a3a5"), ("#e2e7e7", "#2b3537"))
        surface, text, quiet, grid = (both[scheme] for both in colours)
        yield f".surface{{fill:{surface}}}text{{fill:{text}}}text.quiet{{fill:{quiet}}}.grid{{stroke:{grid}}}"
        yield f".ours{{fill:{OURS[scheme]}}}.theirs{{fill:{THEIRS[scheme]}}}.mean{{stroke:{COLOURS[1][scheme]}}}"

    font = "text{font:13px system-ui,'Segoe UI',Roboto,sans-serif}.dot{fill-opacity:.6}.mean{stroke-width:3}"
    style = f"{font}{''.join(rules(0))}@media(prefers-color-scheme:dark){{{''.join(rules(1))}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n"
        f'<rect class="surface" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


FILES = {
    "performance.md": page,
    "design/measurements.md": measurements,
    "images/performance-step.svg": step_picture,
    "images/performance-calls.svg": calls_picture,
}
