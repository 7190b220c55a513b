"""Questions to the Studio, answered in this process: the table of runs, comparisons, curves, and changes."""

from __future__ import annotations

import asyncio
import json
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from hub_requests import SECOND, START
from recorded_runs import points, record
from tachograph.runs.file import Abandoned
from tachograph.runs.store import path_of
from tachograph.studio._api import MOST_CURVES, MOST_PARTS, MOST_SERIES, Api, Question, Unanswered, encoded, text
from tachograph.studio._comparison import MOST_RUNS, Comparison
from tachograph.studio._edits import MOST_BYTES, Edits
from tachograph.studio._table import RunsTable
from tachograph.studio.overview import Overview
from tachograph.studio.studio import Studio

NOW = START + 1_000_000 * SECOND
TOKEN = "a token"  # noqa: S105 - of no server


def now() -> int:
    """Return a time at which all runs have ended long ago."""
    return NOW


def never() -> bool:
    """Go on reading."""
    return False


def asked(path: str, query: str = "") -> Question:
    """Return a question."""
    return Question({"path": f"/api/{path}", "query_string": query.encode()})


def refused(answering: Any, question: Question) -> tuple[HTTPStatus, str]:
    """Return why there is no answer."""
    with pytest.raises(Unanswered) as caught:
        answering.ask(question)
    return caught.value.status, str(caught.value)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three runs, one a day: two have a loss, the third one an accuracy. It stays as it is."""
    store = tmp_path_factory.mktemp("store")
    record(store, "a", *points([3.0, 2.0, 1.0]))
    record(store, "b", *points([5.0, 4.0]), day=1)
    record(store, "c", *points([0.5], metric="accuracy"), day=2)
    return store


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(recorded, tmp_path / "store"))


def table_of(store: Path) -> RunsTable:
    """Return the table of a store's runs."""
    return RunsTable(Overview(store, now, never, outlined=True), "", now)


def rows(table: RunsTable, query: str = "") -> list[Any]:
    """Return the ids of runs, and the heads of groups as tuples."""
    items = table.ask(asked("table", query))["items"]
    return [each["run"]["id"] if "run" in each else (each["group"], each["runs"]) for each in items]


def test_a_table_is_sorted(recorded: Path) -> None:
    """By a column, in both directions: runs without a value come last in each; else the newest first."""
    table = table_of(recorded)
    assert rows(table) == ["c", "b", "a"]
    assert rows(table, "sort=loss") == ["a", "b", "c"]
    assert rows(table, "sort=-loss") == ["b", "a", "c"]
    assert rows(table, "sort=-loss&offset=1&limit=1") == ["a"]


def test_a_table_is_grouped(store: Path) -> None:
    """By the values of a column, in their order, each with its number of runs; runs without a value come last."""
    edits = Edits(store, TOKEN)
    for run, tags in (("a", ["sweep", "big"]), ("c", ["sweep", "big"]), ("b", ["old"])):
        edits.change(run, {"add": tags})
    edits.close()
    table = table_of(store)
    assert rows(table, "group=tags") == [("big, sweep", 2), "c", "a", ("old", 1), "b"]
    assert rows(table, "group=loss&sort=loss") == [(1.0, 1), "a", (4.0, 1), "b", (None, 1), "c"]


def test_a_filter_that_cannot_be_read(recorded: Path) -> None:
    """The answer says why, and where: a page shows it while the filter is written."""
    answer = table_of(recorded).ask(asked("table", "filter=loss <"))
    assert answer.keys() == {"error", "at"}
    assert answer["at"] == 6


def test_a_table_follows_its_runs(store: Path) -> None:
    """Runs that are changed or deleted change in each question's rows, and their columns go with the last run."""
    table, edits = table_of(store), Edits(store, TOKEN)
    for low in range(12):  # more questions than are kept
        assert rows(table, f"filter=loss > {low}") == [run for run, loss in (("b", 4), ("a", 1)) if loss > low]
    named = table.ask(asked("table", "names=1"))["columns"]
    assert (named["last.loss"], named["last.accuracy"]) == (2, 1)
    assert rows(table, "filter=tag:kept") == []
    edits.change("a", {"add": ["kept"]})
    assert rows(table, "filter=tag:kept") == ["a"]
    edits.change("a", {"remove": ["kept"]})
    assert rows(table, "filter=tag:kept") == []
    edits.delete("c")
    edits.close()
    assert rows(table) == ["b", "a"]
    told = table.ask(asked("table", "names=1"))
    assert (told["total"], told["matched"]) == (2, 2)
    assert told["columns"]["last.loss"] == 2
    assert "last.accuracy" not in told["columns"]
    assert told["version"] == table.ask(asked("table"))["version"]


def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    """The list, the table and a comparison say so, with the file."""
    (tmp_path / "runs").write_text("no folder")
    comparison = Comparison(Overview(tmp_path, now, never), now, never)
    api = Api(tmp_path, "", now, never)
    for answering, question in (
        (table_of(tmp_path), asked("table")),
        (api, asked("runs")),
        (comparison, asked("compare", "run=a")),
    ):
        status, why = refused(answering, question)
        assert status == HTTPStatus.CONFLICT
        assert str(tmp_path / "runs") in why


def test_a_question_while_runs_are_read(store: Path) -> None:
    """It has the runs as they were: it does not wait for the others."""
    meanwhile: list[list[str]] = []

    def clock() -> int:
        meanwhile.append(sorted(each.entry["id"] for each in overview.entries(0.25)))
        return NOW

    overview = Overview(store, now, never)
    assert len(overview.runs()) == 3
    record(store, "d", *points([1.0]), day=3)
    overview._clock = clock
    assert [each["id"] for each in overview.runs()] == ["d", "c", "b", "a"]
    assert meanwhile[0] == ["a", "b", "c"]


def test_reading_is_given_up(recorded: Path) -> None:
    """A server that ends reads no further run."""
    with pytest.raises(Abandoned):
        Overview(recorded, now, lambda: True).runs()


def test_runs_beside_each_other(store: Path) -> None:
    """In the order asked for: their columns, the metrics with the runs that have each; and those that are gone."""
    comparison = Comparison(Overview(store, now, never, outlined=True), now, never)
    path_of(store, "broken").write_bytes(b"no database " * 100)
    for _ in range(2):  # the second one reads no metric again
        told = comparison.ask(asked("compare", "run=b&run=a&run=c&run=b&run=aa&run=broken"))
        assert [each["run"]["id"] for each in told["runs"]] == ["b", "a", "c", "broken"]
        assert [each["columns"].get("last.loss") for each in told["runs"]] == [4.0, 1.0, None, None]
        assert [each["run"] for each in told["gone"]] == ["aa"]
        assert [(each["metric"], each["runs"]) for each in told["metrics"]] == [
            ("loss", ["b", "a"]),
            ("accuracy", ["c"]),
        ]
    many = "&".join(f"run=r{number}" for number in range(MOST_RUNS + 1))
    assert refused(comparison, asked("compare", many)) == (
        400,
        f"at most {MOST_RUNS} runs at once, not {MOST_RUNS + 1}",
    )


@pytest.mark.parametrize(
    ("what", "query", "status", "why"),
    [
        ("curves", "", 400, "no metric given: add ?metric=NAME"),
        ("curves", "metric=loss&low=inf", 400, "low must be a finite number, not 'inf'"),
        ("curves", "metric=loss&pairs=0", 400, "pairs must be a whole number from 1 to 20000, not '0'"),
        ("curves", "metric=loss&rank=first", 400, f"rank must be a whole number from 0 to {2**63 - 1}, not 'first'"),
        ("curves", "metric=loss&x=time", 400, "x must be own, step, relative or wall, not 'time'"),
        ("curves", "metric=los", 404, "the run has no metric 'los'; its metrics are 'loss'"),
        (
            "curves",
            "metric=loss&group=eval",
            404,
            "the run has no metric 'loss' in the group 'eval'; its metrics are 'loss'",
        ),
        ("curves", "metric=los&group=", 404, "the run has no metric 'los' without a group; its metrics are 'loss'"),
        ("curves", "metric=loss&rank=7", 404, "the metric 'loss' has no points of rank 7"),
        (
            "arrivals",
            "after=" + "1:2," * (MOST_CURVES + 1),
            400,
            f"at most {MOST_CURVES} curves at once, not {MOST_CURVES + 1}",
        ),
        (
            "samples",
            "series=" + "&series=".join(map(str, range(MOST_SERIES + 1))),
            400,
            f"at most {MOST_SERIES} series at once, not {MOST_SERIES + 1}",
        ),
        ("nothing", "", 404, "not found; see /api/runs"),
    ],
)
def test_a_question_that_has_no_answer(recorded: Path, what: str, query: str, status: int, why: str) -> None:
    """The refusal says what was wrong, and what to ask instead."""
    assert refused(Api(recorded, "", now, never), asked(f"runs/a/{what}", query)) == (status, why)


def test_a_run_that_is_not_there(recorded: Path) -> None:
    """The nearest name is beside the sentence; a query with very many parts is refused."""
    with pytest.raises(Unanswered) as caught:
        Api(recorded, "", now, never).ask(asked("runs/aa/curves", "metric=loss"))
    assert caught.value.status == 404
    with pytest.raises(Unanswered, match=f"a query may have at most {MOST_PARTS} parts"):
        asked("table", "&".join(["column=a"] * (MOST_PARTS + 1)))


@pytest.mark.parametrize(
    ("axis", "xs"),
    [("own", [0, 1, 2]), ("step", [0, 1, 2]), ("wall", [START / SECOND] * 3), ("relative", [0.0] * 3)],
)
def test_curves_are_on_the_axis_that_is_asked_for(recorded: Path, axis: str, xs: list[float]) -> None:
    """The program's own x, the number of a value, or its time, absolute or since the run has begun."""
    (line,) = Api(recorded, "", now, never).ask(asked("runs/a/curves", f"metric=loss&x={axis}"))["curves"]
    assert line["y"] == [3.0, 2.0, 1.0]
    assert line["x"] == pytest.approx(xs, abs=1e-6)


def test_samples_of_no_series(recorded: Path) -> None:
    """A series that is not there has no samples: the page may ask for one of a run that was recorded anew."""
    for query in ("series=999", "series=999&newest=5"):
        assert Api(recorded, "", now, never).ask(asked("runs/a/samples", query)) == {"samples": []}


def test_answers_are_json() -> None:
    """Numbers that JSON has not are strings, however deep; an answer without anything is an object, too."""
    assert (
        text({"a": [1.5, float("inf"), (float("nan"), {"b": float("-inf")})]})
        == '{"a":[1.5,"Infinity",["NaN",{"b":"-Infinity"}]]}'
    )
    assert encoded({}, gzipped=True) == (b"{}\n", False)


def told(
    store: Path,
    method: str,
    run: str,
    body: bytes = b"{}",
    *,
    kind: str = "application/json",
    token: str = TOKEN,
    whole: bool = True,
) -> tuple[int, str]:
    """Send a change to a Studio that takes them; return the status, and the sentence of a refusal."""
    studio = Studio(store, "", token=TOKEN, clock=now)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False} if whole else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", kind.encode()), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": method, "path": f"/api/runs/{run}", "query_string": b"", "headers": headers}
    app = Starlette(routes=studio.routes())
    try:
        asyncio.run(app({**scope, "root_path": ""}, receive, send))
    finally:
        studio.close()
    return sent[0]["status"], json.loads(sent[1]["body"]).get("error", "")


def test_a_run_is_changed_and_deleted(store: Path) -> None:
    """With the token; then it is not there any more."""
    assert told(store, "POST", "a", b'{"name": "first", "notes": "of three"}') == (200, "")
    assert Api(store, "", now, never).ask(asked("runs/a"))["run"]["name"] == "first"
    assert told(store, "DELETE", "a") == (200, "")
    for method in ("POST", "DELETE"):
        assert told(store, method, "a")[0] == 404


@pytest.mark.parametrize(
    ("how", "status", "why"),
    [
        ({"kind": "text/plain"}, 415, "Content-Type must be application/json"),
        ({"body": b" " * (MOST_BYTES + 1)}, 413, "the body is larger than 64 KiB"),
        ({"body": b"["}, 400, "the body must be a JSON object"),
        ({"body": b"[]"}, 400, "the body must be a JSON object"),
        ({"body": b"[" * 60_000}, 400, "the body must be a JSON object"),
        ({"whole": False}, 400, "the body is incomplete"),
        ({"body": b'{"tags": []}'}, 400, "cannot change 'tags'; choose from add, remove, notes, name"),
        ({"body": b'{"name": "a\\u0000"}'}, 400, "printable"),
        ({"token": "another"}, 401, "use the link"),
        ({"method": "PUT"}, 405, "only GET and HEAD are allowed here"),
    ],
    ids=range(10),
)
def test_a_change_that_is_refused(recorded: Path, how: dict[str, Any], status: int, why: str) -> None:
    """Nothing is changed, and the sentence says what is wrong."""
    found, said = told(recorded, **{"method": "POST", "run": "a", "body": b'{"name": "other"}', **how})
    assert found == status
    assert why in said
    assert Api(recorded, "", now, never).ask(asked("runs/a"))["run"]["name"] == ""
