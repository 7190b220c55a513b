"""Who sees the Studio: this machine's user; beyond loopback whoever has the token; no page of another origin."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from hubs import Answer, ask, serving
from recorded_runs import points, record

TOKEN = "a token; with, what no cookie=holds"  # noqa: S105 - the tests' own
LINK = "/?token=a%20token%3B%20with%2C%20what%20no%20cookie%3Dholds"
PATHS = ["/", "/api/runs", "/api/runs/run", "/api/runs/run/curves?metric=loss", "/api/runs/run/events"]
SITES = ["/static/index.html", "/static/nothing"]
HTML = "text/html,application/xhtml+xml"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a hub on loopback with a run."""
    folder = tmp_path_factory.mktemp("hub")
    record(folder, "run", *points([1.0, 2.0]))
    with serving(folder) as hub:
        yield hub.url


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a hub that wants a token."""
    folder = tmp_path_factory.mktemp("guarded")
    record(folder, "run", *points([1.0, 2.0]))
    with serving(folder, token=TOKEN) as hub:
        yield hub.url


@pytest.mark.parametrize("path", [*PATHS, *SITES, "/api/runs/run/live"])
def test_no_page_of_another_origin_reads_or_posts(url: str, path: str) -> None:
    """Another origin's page, a name pointed at loopback and a frame get 403, and no answer has a CORS header."""
    for answer in (
        ask(url, path, Origin="http://evil.example"),
        ask(url, path, Host="evil.example"),
        ask(url, path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"),
        ask(url, path, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors"),
        ask(url, path, b"{}", Origin="http://evil.example", content_type="text/plain"),
        ask(url, path, method="OPTIONS", Origin="http://evil.example"),
    ):
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", [*PATHS, *SITES])
def test_every_answer_says_what_a_browser_may_do_with_it(url: str, path: str) -> None:
    """One policy an answer, from nowhere but here; no sniffing, and nothing for other origins."""
    answer = ask(url, path, Accept=HTML)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["content-security-policy"].count("default-src") == 1
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_an_answer_of_the_api_is_never_kept(url: str) -> None:
    """What is asked again is read again; and it is JSON, whatever the names in it are."""
    for path in PATHS[1:]:
        answer = ask(url, path)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
        assert answer.headers["content-type"] == "application/json"


def test_a_browser_gets_the_page_and_asks_whether_it_has_changed(url: str) -> None:
    """Who takes HTML gets the page, with a tag by which it is not sent twice; who does not gets plain text."""
    if not files("tachograph.studio").joinpath("static", "index.html").is_file():
        pytest.skip("this checkout has no page yet")
    answer = ask(url, "/", Accept=HTML)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert ask(url, "/", Accept=HTML, If_None_Match=answer.headers["etag"]) == Answer(304, ask_headers(answer), b"")
    assert ask(url, "/", Accept=HTML, If_None_Match='"another"').body == answer.body
    assert ask(url, "/static/index.html").body == answer.body
    assert ask(url, "/").headers["content-type"].startswith("text/plain")


def ask_headers(answer: Answer) -> dict[str, str]:
    """Return the headers of an answer without content, in place of one that has some."""
    return {name: value for name, value in answer.headers.items() if name not in ("content-length", "content-type")}


@pytest.mark.parametrize(
    "path", ["/static/../studio.py", "/static/%2e%2e/studio.py", "/static//etc/passwd", "/static/"]
)
def test_nothing_but_the_pages_files_is_served(url: str, path: str) -> None:
    """No path leads from the page's files to others."""
    assert ask(url, path).status == 404


@pytest.mark.parametrize("path", [*PATHS, *SITES, "/api/runs/run/live"])
def test_without_the_token_there_is_nothing(guarded: str, path: str) -> None:
    """Without a token, or with a wrong one or another's cookie, the answer is 401."""
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": "tachograph-00000000=0"},
        {"Cookie": f"token={LINK}"},
    ):
        assert ask(guarded, path, **headers).status == 401
    for wrong in ("wrong", "%E2%82%AC", "%FF", "\\ud800", "", "%00"):
        assert ask(guarded, path + ("&" if "?" in path else "?") + f"token={wrong}").status == 401
    assert ask(guarded, path, Authorization="Bearer \xff").status == 401
    if path != "/":
        assert ask(guarded, path + ("&" if "?" in path else "?") + LINK[2:]).status == 401


def test_a_link_with_the_token_gives_a_cookie_with_which_a_browser_may_look(guarded: str) -> None:
    """The cookie is out of scripts' and other sites' reach, holds no token, and opens what the Studio shows."""
    answer = ask(guarded, LINK)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    kept = answer.headers["set-cookie"].split("; ")
    assert set(kept[1:]) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert "token" not in kept[0].partition("=")[2]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    for path in PATHS:
        assert ask(guarded, path, Cookie=f"other=1; {kept[0]}").status == 200
        assert ask(guarded, path, Cookie=kept[0], method="HEAD").status == 200
        assert ask(guarded, path, Authorization=f"Bearer {TOKEN}").status == 200


def test_the_cookie_is_for_looking_only(guarded: str) -> None:
    """With the cookie nothing can be posted, from nowhere, and another origin's page can read nothing either."""
    cookie = ask(guarded, LINK).headers["set-cookie"].split("; ")[0]
    for path in ("/v1/metrics", "/v1/logs", "/v1/traces", "/api/runs", "/"):
        assert ask(guarded, path, b"{}", Cookie=cookie, content_type="application/json").status == 401
    assert ask(guarded, "/v1/logs", Cookie=cookie).status == 401
    assert ask(guarded, "/api/runs", Cookie=cookie, Origin="http://evil.example").status == 403
    assert ask(guarded, "/api/runs", Cookie=cookie, Sec_Fetch_Site="cross-site").status == 403


def test_a_link_from_another_site_gives_no_cookie(guarded: str) -> None:
    """A page of another site cannot log a browser in."""
    answer = ask(guarded, LINK, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_hubs_with_other_tokens_have_other_cookies(guarded: str, tmp_path: Path) -> None:
    """Cookies do not know ports: two hubs of one host keep theirs apart, and one's opens not the other."""
    with serving(tmp_path, token="another") as hub:  # noqa: S106 - the tests' own
        mine, theirs = (
            ask(address, link).headers["set-cookie"].split("; ")[0]
            for address, link in ((guarded, LINK), (hub.url, "/?token=another"))
        )
        assert mine.partition("=")[0] != theirs.partition("=")[0]
        assert ask(hub.url, "/api/runs", Cookie=mine).status == 401
        assert ask(hub.url, "/api/runs", Cookie=f"{mine}; {theirs}").status == 200
