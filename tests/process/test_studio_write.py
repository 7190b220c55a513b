"""``tachograph studio --write``: with its token runs are tagged, noted, named and deleted; without it nothing is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hub_requests import logs, rank
from hubs import Answer, ask, command, serving
from recorded_runs import points, record
from studio import Studio, alone
from tachograph import runs

JSON = "application/json"


class Writing:
    """A Studio that may change runs, and its token."""

    def __init__(self, studio: Studio, token: str) -> None:
        self.studio = studio
        self.url = studio.url
        self.headers = {"Authorization": f"Bearer {token}"}

    def post(self, run: str, body: Any, **headers: str) -> Answer:
        """Ask for a change; bytes are sent as they are."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return ask(
            self.url, f"/api/runs/{quote(run, safe='')}", sent, **{"content_type": JSON, **self.headers, **headers}
        )

    def delete(self, run: str, **headers: str) -> Answer:
        """Ask for the end of a run."""
        return ask(self.url, f"/api/runs/{quote(run, safe='')}", method="DELETE", **{**self.headers, **headers})


def why(answer: Answer) -> str:
    """Return the sentence of an answer that is a refusal."""
    return str(json.loads(answer.body)["error"])


@contextmanager
def writing(store: Path) -> Iterator[Writing]:
    """Run ``tachograph studio --write``, and read the token that it prints."""
    with alone(store, "--write") as studio:
        found = re.search(r"/#token=([\w-]{43}) shows the runs in .* \(this link can change runs\)", studio.said)
        assert found, studio.said
        yield Writing(studio, found[1])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with two runs."""
    record(tmp_path, "a/run", *points([1.0]))
    record(tmp_path, "another", *points([1.0, 2.0]))
    return tmp_path


def test_with_the_token_runs_are_changed_and_deleted(store: Path) -> None:
    """Tags, notes and name are kept, and told at once; a run that is deleted is gone for the second who asks."""
    with writing(store) as page:
        assert page.studio.ask("runs", "a/run")["writable"] is True
        assert page.post("a/run", {"add": ["best", "sweep"], "notes": "of two\nlines", "name": "Mine"}).status == 200
        assert page.post("a/run", {"remove": ["sweep", "never there"]}).status == 200
        told = page.studio.ask("runs", "a/run")
        assert (told["run"]["name"], told["run"]["tags"], told["notes"]) == ("Mine", ["best"], "of two\nlines")
        (line,) = [each for each in page.studio.ask("runs")["runs"] if each["id"] == "a/run"]
        assert (line["name"], line["tags"]) == ("Mine", ["best"])
        first, second = page.delete("a/run"), page.delete("a/run")
        assert (first.status, json.loads(first.body)) == (200, {"run": "a/run"})
        assert (second.status, why(second)) == (
            404,
            f"there is no run 'a/run' in {store}: list the runs with 'tachograph runs list'",
        )
        assert page.post("a/run", {"name": "late"}).status == 404
    assert [each.id for each in runs.list(store)] == ["another"]


def test_without_the_token_nothing_is_changed(store: Path) -> None:
    """No token, a wrong one, one in the address or in a cookie, and another origin's page are refused."""
    with writing(store) as page:
        token = page.headers["Authorization"].partition(" ")[2]
        wrong = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}, {"Authorization": token})
        for headers in (*wrong, {"Cookie": f"token={token}"}, {"Authorization": "Bearer \xff"}):
            for ask_for in (page.post, lambda run, _, **more: page.delete(run, **more)):
                answer = ask_for("another", {"name": "x"}, **{"Authorization": "", **headers})
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert "use the link" in why(answer)
        assert page.post(f"another?token={token}", {"name": "x"}, Authorization="").status == 401
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
            assert page.delete("another", **headers).status == 403
            assert page.post("another", {"name": "x"}, **headers).status == 403
    assert [(each.id, each.name) for each in runs.list(store)] == [("a/run", ""), ("another", "")]


def test_a_page_for_looking_refuses_changes_with_a_sentence(store: Path) -> None:
    """A Studio without --write, and that of a hub, answer 403 and name the command; other paths are only read."""
    sentence = "this page is read-only; to change or delete runs, use 'tachograph studio --write'"
    with alone(store) as studio, serving(store) as hub:
        for url in (studio.url, hub.url):
            page = Writing(Studio(url), "any")
            assert page.studio.ask("runs", "another")["writable"] is False
            for answer in (page.post("another", {"name": "x"}), page.delete("another")):
                assert (answer.status, why(answer)) == (403, sentence)
            assert ask(url, "/api/runs", b"{}").status == 405
            assert ask(url, "/api/runs/another/live", method="DELETE").status == 405


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body must be a JSON object"),
        (b"[]", 400, "the body must be a JSON object"),
        (b"[" * 60_000, 400, "the body must be a JSON object"),
        (b"\xff", 400, "the body must be a JSON object"),
        (b"{" + b" " * 70_000, 413, "the body is larger than 64 KiB"),
        ({"id": "other"}, 400, "cannot change 'id'; choose from add, remove, notes, name"),
        ({"add": "best"}, 400, "add= must be a list of tags, not str: 'best'"),
        ({"add": [3]}, 400, "add= must be a string, not int: 3"),
        ({"remove": None}, 400, "remove= must be a list of tags, not NoneType: None"),
        ({"add": [""]}, 400, "add= is '': it must not be empty"),
        ({"add": ["\x1b[2J"]}, 400, "add= is '\\x1b[2J': a tag can contain only printable characters"),
        ({"name": "x" * 201}, 400, "name= has 201 characters: a display name may have at most 200"),
        ({"notes": 7}, 400, "notes= must be a string, not int: 7"),
        ({"notes": "x" * 10_001}, 400, "notes= has 10001 characters: notes have at most 10,000"),
    ],
    ids=str,
)
def test_a_change_that_makes_no_sense_is_said(one: Writing, body: Any, status: int, said: str) -> None:
    """The answer names the value and what is allowed; the run stays as it was."""
    answer = one.post("run", body)
    assert (answer.status, why(answer)) == (status, said)
    told = one.studio.ask("runs", "run")
    assert (told["run"]["tags"], told["run"]["name"], told["notes"]) == ([], "", "")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writing]:
    """Return a Studio that may change runs, over a store with one."""
    folder = tmp_path_factory.mktemp("one")
    record(folder, "run", *points([1.0]))
    with writing(folder) as page:
        yield page


def test_a_change_is_sent_as_json(one: Writing) -> None:
    """What a form of another page could send is refused."""
    assert one.post("run", {"name": "x"}, content_type="text/plain").status == 415


def test_a_run_that_a_hub_writes_is_changed_and_not_deleted(tmp_path: Path) -> None:
    """Changes go in beside the hub of another process, whose points go on arriving; the end has to wait for its end."""
    with command(tmp_path, TACHOGRAPH_STORE=str(tmp_path)) as hub, writing(tmp_path) as page:
        for first, value in ((1, 1.0), (2, 2.0)):
            body = logs(rank(0, run="live"), *points([value]), stream="s", first=first).SerializeToString()
            assert ask(hub.url, "/v1/logs", body, content_type="application/x-protobuf").status == 200
            assert page.post("live", {"add": [f"tag {first}"], "name": "watched"}).status == 200
        refused = page.delete("live")
        assert (refused.status, why(refused)) == (409, "cannot delete the run 'live': a hub is writing it")
        told = page.studio.ask("runs", "live")["run"]
        assert (told["points"], told["tags"], told["name"]) == (2, ["tag 1", "tag 2"], "watched")
        hub.process.terminate()
        hub.end()
        assert page.delete("live").status == 200


def test_a_damaged_run_is_deleted_and_not_changed(store: Path) -> None:
    """A file that is no run's cannot be tagged, which is said; it can be deleted."""
    (store / "runs" / "broken.db").write_text("no database at all" * 100)
    with writing(store) as page:
        refused = page.post("broken", {"name": "x"})
        assert (refused.status, why(refused)) == (409, "cannot change the run: file is not a database")
        assert page.delete("broken").status == 200


def test_the_token_of_a_file_is_not_printed(store: Path, tmp_path: Path) -> None:
    """With --token-file that is the one token, for looking and for changes; the cookie of its link only looks."""
    file = tmp_path / "token"
    file.write_text("hunter2\n")
    with alone(store, "--write", "--token-file", str(file)) as studio:
        assert "hunter2" not in studio.said
        assert studio.said.endswith(" (with the token, the page can change runs)\n")
        page = Writing(studio, "hunter2")
        assert page.post("another", {"name": "x"}).status == 200
        cookie = ask(studio.url, "/?token=hunter2").headers["set-cookie"].split("; ")[0]
        assert ask(studio.url, "/api/runs", Cookie=cookie).status == 200
        assert page.post("another", {"name": "y"}, Authorization="", Cookie=cookie).status == 401


def test_looking_goes_on_while_runs_are_changed(store: Path) -> None:
    """A Studio that writes reads with SQLite's locks: each answer is whole, and has the newest change."""
    with writing(store) as page:
        for number in range(20):
            assert page.post("another", {"notes": f"{number}", "add": [f"tag {number}"]}).status == 200
            told = page.studio.ask("runs", "another")
            assert (told["notes"], len(told["run"]["tags"]), told.get("damage", [])) == (f"{number}", number + 1, [])
