"""Names that Prometheus refuses are refused at the hub's door; the node's page is taken by both generations."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

import servers
from examples import examples
from hub_requests import histogram, metrics, number, only, rank
from hubs import JSON, PROTOBUF, Serving, ask, serving
from tachograph.hub.hub import Hub

REFUSED = [("", "k"), ("a\0b", "k"), ("\0", "k"), ("x", ""), ("x", "k\0")]
ODD = [*'\r\n\t\x01\x7f\x85\u2028\ufeff\uffff\\"}{# =_9']
CLASSIC = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
UTF8 = f"{OPENMETRICS};escaping=allow-utf-8"


def with_refused() -> ExportMetricsServiceRequest:
    """Return a request of one sender: of every name and key that is refused a gauge, and a good one at each end."""
    odd = [number(name, 1.0, attributes={key: "v"}) for name, key in REFUSED]
    return metrics(rank(0), number("first", 1.5), *odd, number("last", 2.5))


@pytest.mark.process
@pytest.mark.parametrize("form", [PROTOBUF, JSON])
def test_a_refused_name_is_counted_and_said_and_the_others_are_kept(tmp_path: Path, form: str) -> None:
    """The answer says how many points were rejected, why, and of which metric; the sender's other points are there."""
    request = with_refused()
    body = request.SerializeToString() if form == PROTOBUF else MessageToJson(request).encode()
    with serving(tmp_path) as hub:
        answer = ask(hub.url, "/v1/metrics", body, content_type=form)
        page = ask(hub.url, "/metrics").body
    assert answer.status == 200
    if form == PROTOBUF:
        success = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        rejected, why = success.rejected_data_points, success.error_message
    else:
        told = json.loads(answer.body)["partialSuccess"]
        rejected, why = int(told["rejectedDataPoints"]), told["errorMessage"]
    assert rejected == len(REFUSED)
    assert f"{len(REFUSED)} illegal_name, first of metric '': " in why
    assert (only(page, "first"), only(page, "last")) == (1.5, 2.5)
    assert only(page, "tachograph_dropped_total", reason="illegal_name", destination="hub") == len(REFUSED)
    assert b"\0" not in page


@pytest.mark.process
@pytest.mark.parametrize(
    "sent",
    [
        [histogram("tachograph.dropped", [1, 2, 3], total=1.5, unit="{item}")],
        [number("tachograph.dropped", float("nan"), unit="{item}")],
        [number("tachograph.dropped", float("inf"))],
        [number("tachograph.dropped", 1.7e308, kind="counter", start=start, time=start + 1) for start in (1, 5)],
    ],
    ids=["histogram", "NaN", "infinity", "overflow"],
)
def test_our_own_names_may_be_anything_of_others(tmp_path: Path, sent: list[Any]) -> None:
    """What a program sends under the name of our count of losses ends neither the hub nor the one that comes next."""
    ours = number("tachograph.dropped", 7, kind="counter", unit="{item}", attributes={"reason": "queue_full"})
    with serving(tmp_path) as hub:
        for each in ([*sent, ours], [ours]):
            body = metrics(rank(0), *each, scope="tachograph").SerializeToString()
            assert ask(hub.url, "/v1/metrics", body, content_type=PROTOBUF).status == 200
        hub.hub.tick()
        health = ask(hub.url, "/healthz")
        assert health.status == 200
        assert json.loads(health.body)["dropped"] == 7
        assert ask(hub.url, "/sd").status == 200
    with serving(tmp_path) as again:
        assert ask(again.url, "/healthz").status == 200
        assert ask(again.url, "/metrics").status == 200


@pytest.mark.process
def test_a_name_that_cannot_be_read_costs_its_request_only(tmp_path: Path) -> None:
    """UTF-8 that is none, in protobuf or as a lone surrogate in JSON, is no OTLP: 400, and the page stays as it was."""
    good, bad = metrics(rank(0), number("good", 1.0)), metrics(rank(0), number("bad?", 1.0))
    spoilt = bad.SerializeToString().replace(b"bad?", b"bad\xff")
    surrogate = MessageToJson(bad).replace("bad?", "bad\\ud800").encode()
    with serving(tmp_path) as hub:
        assert ask(hub.url, "/v1/metrics", good.SerializeToString(), content_type=PROTOBUF).status == 200
        assert ask(hub.url, "/v1/metrics", spoilt, content_type=PROTOBUF).status == 400
        assert ask(hub.url, "/v1/metrics", surrogate, content_type=JSON).status == 400
        page = ask(hub.url, "/metrics").body
    assert only(page, "good") == 1.0
    assert b"bad" not in page


def test_a_store_that_holds_such_a_name_does_not_bring_it_back(tmp_path: Path) -> None:
    """An older hub kept an empty name: the next hub on its store shows all the others."""
    hub = Hub(tmp_path, run="run")
    hub.receive_metrics(metrics(rank(0), number("good", 1.0), number("bad", 2.0)))
    hub.close()
    with contextlib.closing(sqlite3.connect(hub.store)) as file, file:
        assert file.execute("UPDATE series SET name = '' WHERE name = 'bad'").rowcount == 1
    again = Hub(tmp_path, run="run")
    _, page = again.page(UTF8)
    again.close()
    assert b"\ngood{" in page
    assert b'{""' not in page


@pytest.mark.process
@pytest.mark.prometheus
@pytest.mark.parametrize("major", [2, 3])
def test_both_generations_take_the_node_whatever_it_was_sent(tmp_path: Path, major: int) -> None:
    """Any text in names, keys, values, units, descriptions, scopes and resources: the target is up, good points too."""
    with serving(tmp_path / "store") as hub:
        for index, text in enumerate([*ODD, "\0", ""]):
            _send_everywhere(hub, index, text)
        assert ask(hub.url, "/v1/metrics", with_refused().SerializeToString(), content_type=PROTOBUF).status == 200
        target = hub.url.partition("://")[2]
        config = tmp_path / "prometheus.yml"
        job = {"job_name": "node", "static_configs": [{"targets": [target]}]}
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
        with servers.prometheus(config, major=major) as base:
            servers.wait_until(lambda: servers.instant(base, "up"))
            found = servers.api(base, "targets")["activeTargets"][0]
            assert (found["health"], found["lastError"]) == ("up", "")
            assert [value for _, value in servers.instant(base, "last")] == [2.5]
            assert len(servers.instant(base, "good")) == len(ODD) + 2


def _send_everywhere(hub: Serving, index: int, text: str) -> None:
    """Send text wherever a sender may put it, and a metric ``good`` of the same process."""
    sent = [
        number("good", 1.0),
        number("valued", 1.0, attributes={"k": text}),
        number("keyed", 1.0, attributes={text: 1}),
    ]
    for kind in ("gauge", "counter"):
        sent += [number(f"{text}{kind}{index}", 1.0, kind=kind, unit=text), number(text, 1.0, kind=kind)]
    sent.append(histogram(f"h{text}{index}", [1, 2, 3], unit=text, total=-1.0, attributes={text: text}))
    described = number(f"described{index}", 1.0)
    described.description = text
    request = metrics({**rank(index), f"resource{text}": text, text: "v"}, *sent, described, scope=text)
    answer = ask(hub.url, "/v1/metrics", request.SerializeToString(), content_type=PROTOBUF)
    assert answer.status == 200


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=5), resource=st.dictionaries(texts, texts))
def test_no_page_that_a_parser_refuses(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str, str]], resource: dict[str, str]
) -> None:
    """Whatever names, keys and values come, both of prometheus_client's parsers read the page, and nothing is lost."""
    sent: list[Any] = [number(name, 1.0, attributes={key: value}) for name, key, value in names]
    hub = Hub(tmp_path_factory.mktemp("store"))
    rejected = hub.receive_metrics(metrics({**resource, **rank(0)}, *sent, number("good", 1.0))).items
    classic, openmetrics, utf8 = (hub.page(form)[1] for form in (CLASSIC, OPENMETRICS, UTF8))
    hub.close()
    assert rejected == sum(not name or "\0" in name or not key or "\0" in key for name, key, _ in names)
    for families in (parse_classic(classic.decode()), parse_openmetrics(openmetrics.decode())):
        assert "good" in {family.name for family in families}
    assert b'{""' not in utf8
