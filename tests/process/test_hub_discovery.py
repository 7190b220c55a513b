"""Discovery: Prometheus is told one address, and finds every process of the node."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hubs import PROTOBUF, ask, request, scraping, serving
from launches import RUN
from programs import environment, write
from servers import instant, prometheus, wait_until
from tachograph.hub.hub import Hub

JOB = """
    import os, sys, time
    import tachograph
    if sys.argv[1] == "serves":  # a page of its own, which the hub's target covers
        tachograph.start(metrics="prometheus", prometheus_port=0)
    while not os.path.exists("stop"):
        tachograph.put_metric("step", 1, "train")
        time.sleep(0.2)
"""


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [3, 2])
def test_the_real_prometheus_finds_the_node(tmp_path: Path, major: int) -> None:
    """Both generations of Prometheus find the hub through /sd, and have every rank."""
    with serving(tmp_path / "store") as hub:
        for rank in range(3):
            body = request(0.5 + rank, rank=rank).SerializeToString()
            assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
        config = tmp_path / "hub.yml"
        config.write_text(scraping(hub.url).replace("interval: 5s", "interval: 1s"))
        with prometheus(config, major=major) as base:
            wait_until(lambda: instant(base, 'count(loss{dl_rank!=""})') not in ([], [({}, 0.0)]), 40)
            found = {
                labels["dl_rank"]: (value, labels["instance"]) for labels, value in instant(base, 'loss{dl_role!=""}')
            }
            address = hub.url.partition("://")[2]
            assert found == {str(rank): (0.5 + rank, address) for rank in range(3)}
            assert instant(base, "up")[0][1] == 1.0
        assert hub.server.scraped


@pytest.mark.prometheus
@pytest.mark.parametrize("major", [3, pytest.param(2, marks=pytest.mark.long)])
def test_the_documented_prometheus_finds_every_job_of_its_user(tmp_path: Path, major: int) -> None:
    """After ``init prometheus`` all jobs are found, but no other user's; a killed hub's file is removed."""
    program = write(tmp_path, JOB)
    mine = environment(tmp_path)
    stranger = {**mine, "TACHOGRAPH_STORE": str(tmp_path / "another user's")}
    targets = tmp_path / "store" / "targets"
    targets.mkdir(parents=True)
    stale = targets / f"{socket.gethostname()}-999999999.json"
    stale.write_text('[{"targets": ["127.0.0.1:9"]}]')
    init = [sys.executable, "-m", "tachograph", "init", "prometheus", "--output", str(tmp_path / "monitoring")]
    subprocess.run(init, env=mine, check=True, capture_output=True)
    config = tmp_path / "monitoring" / "hub.yml"
    config.write_text(config.read_text().replace("interval: 5s", "interval: 1s"))
    with contextlib.ExitStack() as jobs:
        for run, surrounding, kind in (("a", mine, "serves"), ("b", mine, "plain"), ("stranger", stranger, "plain")):
            command = [*RUN, "--run-id", run, "--linger", "0", "--", sys.executable, str(program), kind]
            jobs.enter_context(
                subprocess.Popen(
                    command, cwd=tmp_path, env=surrounding, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        jobs.callback((tmp_path / "stop").touch)
        with prometheus(config, major=major) as base:
            wait_until(lambda: len(instant(base, "step")) == 2, 60)
            found = [(labels["dl_run_id"], value) for labels, value in instant(base, "step")]
            assert sorted(found) == [("a", 1.0), ("b", 1.0)]
            assert [value for _, value in instant(base, "up")] == [1.0, 1.0]
        assert len(list(targets.iterdir())) == 2
        assert not stale.exists()
    assert list(targets.iterdir()) == []


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
