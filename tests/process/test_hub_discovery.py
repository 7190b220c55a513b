"""Discovery: Prometheus is told one address, and finds every process of the node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hubs import PROTOBUF, ask, request, serving
from places import ROOT
from servers import instant, prometheus, wait_until
from tachograph.hub.hub import Hub

CONFIG = ROOT / "deploy" / "prometheus" / "hub.yml"


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [3, 2])
def test_the_real_prometheus_finds_the_node(tmp_path: Path, major: int) -> None:
    """Both generations of Prometheus find the hub through /sd with the file that is shipped, and have every rank."""
    with serving(tmp_path / "store") as hub:
        for rank in range(3):
            body = request(0.5 + rank, rank=rank).SerializeToString()
            assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
        config = tmp_path / "hub.yml"
        text = CONFIG.read_text().replace("http://127.0.0.1:4318", hub.url)
        config.write_text(
            text.replace("scrape_interval: 5s", "scrape_interval: 1s").replace("interval: 5s", "interval: 1s")
        )
        with prometheus(config, major=major) as base:
            wait_until(lambda: instant(base, 'count(loss{dl_rank!=""})') not in ([], [({}, 0.0)]), 40)
            found = {
                labels["dl_rank"]: (value, labels["instance"]) for labels, value in instant(base, 'loss{dl_role!=""}')
            }
            address = hub.url.partition("://")[2]
            assert found == {str(rank): (0.5 + rank, address) for rank in range(3)}
            assert instant(base, "up")[0][1] == 1.0
        assert hub.server.scraped


@pytest.mark.parametrize("run", ["job", ""])
def test_the_target_is_the_address_that_the_scraper_used(tmp_path: Path, run: str) -> None:
    """Through a tunnel the scraper comes back the same way, and learns the hub's own run, if any, for relabelling."""
    with serving(tmp_path, kind=lambda store: Hub(store, run=run or None)) as hub:
        answer = ask(hub.url, "/sd", Host="localhost:19999")
        assert answer.headers["content-type"] == "application/json"
        (group,) = json.loads(answer.body)
        assert group["targets"] == ["localhost:19999"]
        assert group["labels"]["__meta_tachograph_run"] == run
        assert all(isinstance(value, str) for value in group["labels"].values())


def test_health_says_how_much_was_received(tmp_path: Path) -> None:
    """/healthz is JSON with counts, and with nothing that a stranger should not read."""
    with serving(tmp_path) as hub:
        ask(hub.url, "/v1/metrics", request(1.0, 2.0).SerializeToString(), content_type=PROTOBUF)
        found = json.loads(ask(hub.url, "/healthz").body)
        assert found == {"status": "ok", "data_points": 2, "log_records": 0, "dropped": 0, "lost": 0}


def test_the_front_page_points_the_way(tmp_path: Path) -> None:
    """Whoever opens the hub's address sees what there is, as plain text."""
    with serving(tmp_path) as hub:
        answer = ask(hub.url, "/")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        for path in (b"/metrics", b"/sd", b"/healthz", b"/v1/metrics"):
            assert path in answer.body
