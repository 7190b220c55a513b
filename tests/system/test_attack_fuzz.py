"""A minute of ``bench/attack/fuzz.py``, and what its judges say of servers, pages and lines that are wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from hubs import serving
from places import ROOT
from servers import influxdb1
from tachograph.exporters.influxdb._line import line

sys.path.insert(0, str(ROOT / "bench" / "attack"))

from hub_inputs import HUB_KINDS
from line_protocol import parse
from page_judge import complaints
from recorded_inputs import RECORDED_KINDS

ATTACK = ROOT / "bench" / "attack"

SECONDS = 60
KINDS = 14
LONGEST = 60_000  # bytes of a line that the server takes, whatever is in it
GOOD = b"# TYPE a gauge\na 1\n"


def fuzz(folder: Path, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the attack, which keeps what fails in a folder; not under coverage: that would be what is measured."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    plain["TMPDIR"] = str(folder)
    command = [sys.executable, str(ATTACK / "fuzz.py"), *arguments]
    return subprocess.run(command, env=plain, capture_output=True, text=True, timeout=timeout, check=False)


@contextmanager
def server(status: int, page: bytes = GOOD, chosen: int = 0) -> Iterator[str]:
    """Serve a page at ``/metrics``, and answer everything else with a status; lend the URL.

    One of ``chosen`` bodies has 500, and after so many answers a connection ends without a word.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, page)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(500 if chosen and zlib.crc32(body) % chosen == 0 else status, b"said")
            self.answered = getattr(self, "answered", 0) + 1
            self.close_connection = self.answered == chosen

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}"
        finally:
            serving.shutdown()
            thread.join()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_minute_of_bad_input_breaks_nothing(tmp_path: Path) -> None:
    """No error of the hub's, no traceback, pages for everybody, exact totals for who is honest, memory, and the files.

    How fast ``/healthz`` is on a busy machine says little: five seconds would be a hub that hangs.
    """
    out = tmp_path / "fuzz.json"
    arguments = ("--seconds", str(SECONDS), "--every", "2500", "--healthz", "5", "--out", str(out))
    done = fuzz(tmp_path, *arguments, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["attack"]: row for row in json.loads(out.read_text())["rows"]}
    assert len(rows) == KINDS + 2
    assert all(row["tried"] > 0 and not row["failed"] for row in rows.values())
    assert rows["OTLP metrics in protobuf, a third of them mutated"]["tried"] >= 100


def test_an_error_of_the_server_is_found_kept_and_made_again(tmp_path: Path) -> None:
    """A 500 is printed with seed, commit, command and the input's file; the command sends the same bytes again."""
    with server(500) as url:
        done = fuzz(tmp_path, "--seed", "7", "--only", "logs", "--inputs", "3", "--url", url)
        found = re.search(r"the input: (.*)\n  seed 7, commit \S+, again: python \S+fuzz.py (.*)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        again = fuzz(tmp_path, *found[2].split())
        same = re.search(r"the input: (.*)\n", again.stdout)
    assert done.returncode == again.returncode == 1
    assert "status 500: b'said'" in done.stdout
    assert "--only logs --first" in found[2]
    assert "--inputs 1" in found[2]
    assert same is not None
    sent = [Path(path) for path in (found[1], same[1])]
    assert sent[0].name == sent[1].name
    assert re.sub(rb"\r\n\r\n.*", b"", sent[0].read_bytes()).startswith(b"POST /v1/logs HTTP/1.1\r\n")


def test_each_answer_belongs_to_its_input(tmp_path: Path) -> None:
    """Several requests are under way on a connection, which ends now and then: each is judged by its own answer."""
    made = [HUB_KINDS["nested"].make(Random(f"7:nested:{number}")) for number in range(20)]  # noqa: S311 - seeded
    refused = {number for number, sent in enumerate(made) if zlib.crc32(sent.partition(b"\r\n\r\n")[2]) % 3 == 0}
    assert 0 < len(refused) < 10
    with server(200, chosen=3) as url:
        done = fuzz(tmp_path, "--seed", "7", "--only", "nested", "--inputs", "20", "--workers", "1", "--url", url)
    assert set(map(int, re.findall(r"--only nested --first (\d+) --inputs 1\n", done.stdout))) == refused
    assert re.search(rf"20 tried +{len(refused)} failed +200: {20 - len(refused)}, 500: {len(refused)}\n", done.stdout)


def test_a_hub_that_is_well_is_no_failure(tmp_path: Path) -> None:
    """What answers as it should is not accused."""
    with serving(tmp_path) as hub:
        done = fuzz(tmp_path, "--only", "traces", "--inputs", "20", "--url", hub.url)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_nobody_can_read_is_found(tmp_path: Path) -> None:
    """A page that parsers refuse is a failure, with the commands that send the same again."""
    with server(200, b'a{b="c} 1\n') as url:
        done = fuzz(tmp_path, "--seed", "7", "--only", "metrics", "--inputs", "3", "--url", url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "prometheus_client says" in done.stdout
    assert "--seed 7" in done.stdout
    assert "--only metrics --first 0 --inputs 3" in done.stdout


@pytest.mark.prometheus
@pytest.mark.parametrize("page", [b"a{ 1\n", b"a 1\na 2\n# TYPE a counter\n", b"\xff 1\n", b'a{b="c",b="c"} 1\n'])
def test_each_wrong_page_has_a_judge(page: bytes) -> None:
    """A page that is wrong in one way or another is refused by one judge at least; a right one by none."""
    assert complaints({"text": page}, promtool=True)
    assert not complaints({"text": GOOD, "OpenMetrics": GOOD + b"# EOF\n"}, promtool=True)
    assert complaints({"OpenMetrics": GOOD})


def test_lines_are_read_strictly() -> None:
    """What is escaped reads back, and what InfluxDB would take for something else is refused."""
    read = parse(r'a\ b\,c,t\=u=v\ w,z=1 f\,=1i,s="x \"y\" \\, =z",d=-1.5e-07,ok=true 17')
    assert read == (
        "a b,c",
        {"t=u": "v w", "z": "1"},
        {"f,": 1, "s": 'x "y" \\, =z', "d": -1.5e-07, "ok": True},
        17,
    )


def test_what_is_read_strictly_the_real_server_takes(tmp_path: Path) -> None:
    """Lines that the attack makes, and its reader reads, are taken by InfluxDB, but for what is no matter of syntax."""
    refused, lines = [], []
    for number in range(1500):
        with suppress(ValueError):  # a comment; and the server skips a NUL at the beginning
            made = line(RECORDED_KINDS["lines"].make(Random(f"1:lines:{number}")), {})  # noqa: S311 - seeded on purpose
            lines += [made] if made is not None and 0 < len(made.text) < LONGEST and made.text[0] else []
    assert len(lines) > 1000
    with influxdb1(tmp_path) as base:
        for made in lines:
            parse(made.text.decode())
            try:
                urllib.request.urlopen(f"{base}/write?db=tplr", made.text, timeout=30).close()
            except urllib.error.HTTPError as error:
                said = json.load(error)["error"]
                if "field type conflict" not in said and 'input tag "time"' not in said and 'field "time"' not in said:
                    refused.append((said[:200], made.text[:200]))
    assert not refused


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "#a b=1 1",
            "a 1",
            "a b=1",
            "a b= 1",
            "a b=1 x",
            ",a b=1 1",
            "a,t= b=1 1",
            "a,=t b=1 1",
            "a,t=1,t=2 b=1 1",
        ),
        *("a b=1,b=2 1", "a =1 1", "a b=nan 1", "a b=1e999x 1", 'a b="1 1', "a b=9223372036854775808i 1", "a,t b=1 1"),
        *("a\nb b=1 1", "a b=1 9223372036854775807", "a,t=u\\ b=1 1", "a b=1 1 1"),
    ],
)
def test_what_is_no_line_is_refused(text: str) -> None:
    """Nothing that InfluxDB would refuse, or take for something else, is read."""
    with pytest.raises(ValueError, match=r"."):
        parse(text)
