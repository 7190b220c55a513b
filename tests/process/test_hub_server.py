"""The server: one port for receiving and looking; a scrape holds up nobody, and ports are never shared."""

from __future__ import annotations

import gzip
import http.client
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from hubs import PROTOBUF, Serving, ask, points, request, serving
from tachograph.hub.hub import Hub
from tachograph.hub.server import HUB_PORT, address_of, listen


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Return a running hub that has received from two ranks."""
    with serving(tmp_path_factory.mktemp("hub")) as found:
        for rank in range(2):
            body = request(0.5 + rank, rank=rank, name="step.loss").SerializeToString()
            assert ask(found.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
        yield found


def test_one_page_shows_every_rank(hub: Serving) -> None:
    """The page has each process's series, told apart by its rank."""
    page = ask(hub.url, "/metrics").body.decode()
    found = {
        sample.labels["dl_rank"]: sample.value
        for family in classic(page)
        for sample in family.samples
        if sample.name == "step_loss" and "dl_rank" in sample.labels
    }
    assert found == {"0": 0.5, "1": 1.5}


def test_the_scraper_chooses_form_and_names(hub: Serving) -> None:
    """Accept and ``escaping`` choose between the classic text, OpenMetrics and UTF-8 names, as on any endpoint."""
    wanted = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"
    answer = ask(hub.url, "/metrics", Accept=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert '"step.loss"' in answer.body.decode()
    named = ask(hub.url, "/metrics?escaping=underscores", Accept=wanted)
    families = openmetrics(named.body.decode())  # type: ignore[no-untyped-call]
    assert any(family.name == "step_loss" for family in families)
    assert ask(hub.url, "/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'"step.loss"' in ask(hub.url, "/metrics?escaping=allow-utf-8").body


def test_the_page_is_compressed_where_asked(hub: Serving) -> None:
    """A scraper that takes gzip gets it, and caches are told."""
    answer = ask(hub.url, "/metrics", Accept_Encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    assert b"step_loss" in gzip.decompress(answer.body)
    assert "content-encoding" not in ask(hub.url, "/metrics", Accept_Encoding="gzip;q=0").headers


def test_answers_on_a_kept_connection_are_not_late(hub: Serving) -> None:
    """An answer goes out at once, not when the client's delayed acknowledgement of its first part comes: 40 ms."""
    connection = http.client.HTTPConnection(hub.url.partition("://")[2], timeout=30)
    taken = []
    for _ in range(40):
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        taken.append(time.perf_counter() - began)
    connection.close()
    assert statistics.median(taken) < 0.02


def test_head_and_other_paths(hub: Serving) -> None:
    """HEAD is answered as GET without the body; what there is not is a 404, what is not allowed a 405."""
    head = ask(hub.url, "/metrics", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert ask(hub.url, "/v1/metrics/").status == 404
    assert ask(hub.url, "/v2/metrics", b"", content_type=PROTOBUF).status == 404
    assert ask(hub.url, "/metrics", b"").status == 405


class SlowPage(Hub):
    """A hub whose page takes its time."""

    def page(self, accept: str = "", escaping: str | None = None, scraper: str = "") -> tuple[str, bytes]:
        """Return the page, after a quarter of a second."""
        time.sleep(0.25)
        return super().page(accept, escaping, scraper)


@pytest.mark.timing
def test_a_scrape_does_not_hold_up_receiving(tmp_path: Path) -> None:
    """While a large page is made, requests are received as fast as ever; too many scrapes are put off."""
    with serving(tmp_path, kind=SlowPage) as slow:
        statuses: list[int] = []
        scrapes = [
            threading.Thread(target=lambda: statuses.append(ask(slow.url, "/metrics").status)) for _ in range(10)
        ]
        for scrape in scrapes:
            scrape.start()
        longest = 0.0
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            began = time.monotonic()
            body = request(1.0).SerializeToString()
            assert ask(slow.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
            longest = max(longest, time.monotonic() - began)
        for scrape in scrapes:
            scrape.join()
        assert longest < 0.2
        assert sorted(statuses) == [200] * 8 + [503] * 2


class BrokenPage(Hub):
    """A hub that cannot make its page."""

    def page(self, accept: str = "", escaping: str | None = None, scraper: str = "") -> tuple[str, bytes]:  # noqa: ARG002 - it is given
        """Fail."""
        raise OSError(5, "Input/output error")


def test_a_failed_scrape_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The scraper is told with a 500, it is logged once, and receiving goes on."""
    with serving(tmp_path, kind=BrokenPage) as broken:
        for _ in range(2):
            assert ask(broken.url, "/metrics").status == 500
        assert ask(broken.url, "/v1/metrics", request(1.0).SerializeToString(), content_type=PROTOBUF).status == 200
        assert points(broken.url) == 1
    assert len([record for record in caplog.records if "scrape" in record.message]) == 1


def test_only_prometheus_counts_as_prometheus(tmp_path: Path) -> None:
    """A scrape by a Prometheus server is remembered; curl's is not."""
    with serving(tmp_path) as found:
        ask(found.url, "/metrics", User_Agent="curl/8")
        assert not found.server.scraped
        ask(found.url, "/metrics", User_Agent="Prometheus/3.15.0")
        assert found.server.scraped


def test_a_port_is_never_shared() -> None:
    """An explicit port that is taken is an error that names it; any free one is found for 0."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1 port {port}: "):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", 0) as second:
            assert second.getsockname()[1] != port


def test_the_usual_port_or_the_next_free_one() -> None:
    """Without a port it is 4318, or the next one that nobody has."""
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert HUB_PORT <= first.getsockname()[1] < second.getsockname()[1]


@pytest.mark.parametrize("host", ["no such host", "host.invalid", "203.0.113.7", "x" * 300])
def test_a_host_that_is_not_this_machine_is_an_error(host: str) -> None:
    """An address that is none of this machine's says so."""
    with pytest.raises(OSError, match=r"is not an address of this machine|cannot listen on"):
        listen(host, 0)


def test_the_address_is_one_that_works() -> None:
    """The URL that is told can be asked on this machine, also where the hub listens on all addresses or on IPv6."""
    with listen("localhost", 0) as found:
        host, url = address_of(found)
        assert url == (f"http://[{host}]" if ":" in host else f"http://{host}") + f":{found.getsockname()[1]}"
    with socket.socket() as every:
        every.bind(("0.0.0.0", 0))  # noqa: S104 - bound for its name only: nothing listens
        assert address_of(every)[1].startswith("http://127.0.0.1:")
    if socket.has_ipv6:
        with socket.socket(socket.AF_INET6) as every:
            every.bind(("::", 0))
            assert address_of(every)[1].startswith("http://[::1]:")
