"""The token, which no message shows."""

from __future__ import annotations

import base64
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from influx_points import events, exporter, feed
from receivers import SECRET, receiving
from servers import free_port, wait_until
from tachograph.exporters._http import root
from tachograph.exporters.delivery import Retry
from tachograph.exporters.influxdb import server
from tachograph.exporters.influxdb.server import NoClient, Secret, Server
from tachograph.logger.influx_target import InfluxTarget
from tachograph.recording.registry import Registry


def test_a_context_that_is_suppressed_is_no_reason() -> None:
    """urllib3 1.26 raises the error of a connection while it handles another one, which it has made itself."""
    error = TimeoutError()
    error.__context__ = TypeError("buffering")
    assert root(error) is error.__context__
    error.__suppress_context__ = True  # as `from None` does it
    assert root(error) is error


@pytest.mark.parametrize("end", ["\n", "\r\n", " ", "\t"])
def test_white_space_around_a_token_is_none_of_it(end: str) -> None:
    """A token that was read from a file with its line's end is sent without; other texts, too."""
    found = InfluxTarget.read({"INFLUXDB_HOST": "h", "INFLUXDB_TOKEN": f"{SECRET}{end}", "INFLUXDB_ORG": f"o{end}"})
    assert found is not None
    assert (found.token, found.org) == (SECRET, "o")
    given = InfluxTarget.read({}, host="h", token=f" {SECRET}{end}", database=f"d{end}")
    assert given is not None
    assert (given.token, given.database) == (SECRET, "d")


@pytest.mark.parametrize("token", [f"{SECRET}\n{SECRET}", f"{SECRET}\0", f"{SECRET}\x7f", f"{SECRET}☃"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    """It is an error at the call, which names the variable and shows nothing of it."""
    for call in (lambda: InfluxTarget.read({}, host="h", token=token), lambda: InfluxTarget("http://h:1", token=token)):
        with pytest.raises(ValueError, match="INFLUXDB_TOKEN") as caught:
            call()
        assert SECRET not in str(caught.value)


@pytest.mark.process
@pytest.mark.parametrize("token", [SECRET, f"somebody:{SECRET}", "t\\'ä"])
def test_no_exception_shows_the_token(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Whatever a library raises with the header in it, the message is without."""
    made = Server(InfluxTarget(f"http://127.0.0.1:{free_port()}", token=token))
    made.connect()
    said = [
        f"Invalid header value {f'Token {token}'.encode('latin-1')!r}",
        f"Invalid header value {token!r}",
        f"Authorization: Basic {base64.b64encode(token.encode()).decode()}",
    ]
    for text in said:

        def request(*_: Any, text: str = text, **__: Any) -> None:
            raise ValueError(text)

        assert made._carrier is not None
        monkeypatch.setattr(made._carrier.pool_manager, "request", request)
        with pytest.raises(Retry) as caught:
            made.write(b"a b=1 1", 1.0)
        shown = str(caught.value)
        assert "ValueError: " in shown
        password = token.rpartition(":")[2]
        for spelled in (token, password, repr(password)[1:-1], repr(password.encode("latin-1"))[2:-1]):
            assert spelled not in shown
        assert base64.b64encode(token.encode()).decode() not in shown


def test_a_client_that_does_not_load_shows_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the client is told as a failure of its own, without the token."""

    def load(_: str) -> None:
        raise RuntimeError(f"no use for {SECRET}")

    monkeypatch.setattr(server, "import_module", load)
    with pytest.raises(NoClient, match=r"cannot load the client: RuntimeError: no use for …"):
        Server(InfluxTarget("http://127.0.0.1:1", token=SECRET)).connect()


def test_a_short_token_leaves_words_alone() -> None:
    """A token of a few letters is taken out where it stands by itself; a long one everywhere."""
    assert Secret("t").hidden("Timeout: b'Token t'") == "Timeout: b'Token …'"
    assert Secret(SECRET).hidden(f"x{SECRET}x") == "x…x"
    assert Secret("").hidden("as it was") == "as it was"


@pytest.mark.process
def test_what_is_logged_shows_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exporter's own lines are without the token, down to DEBUG."""
    caplog.set_level(logging.DEBUG)

    def load(_: str) -> None:
        raise RuntimeError(f"Invalid header value b'Token {SECRET}'")

    with receiving() as there:
        monkeypatch.setattr(server, "import_module", load)
        out = exporter(there.url.removesuffix("/v1/metrics"), tmp_path, Registry(), token=SECRET)
        feed(out, events(0, 5))
        wait_until(lambda: "cannot load the client" in caplog.text)
        time.sleep(0.3)
        out.close(0.1)
    assert SECRET not in caplog.text
