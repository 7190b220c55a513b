"""Real Prometheus servers of both generations scrape our page; their query API returns exactly what was recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import servers
from places import ROOT
from tachograph.exporters.prometheus.endpoint import Endpoint
from tachograph.exporters.prometheus.page import Page
from tachograph.recording.accumulators import Distribution
from tachograph.recording.registry import Registry
from tachograph.recording.summary import Exemplar

pytestmark = pytest.mark.prometheus

CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
PLAIN = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: plain
    file_sd_configs: [{files: ["targets/*.json"]}]
"""
RANK = {"dl_rank": "3", "dl_role": "default"}


@contextmanager
def serving(registry: Registry, store: Path) -> Iterator[Endpoint]:
    """Serve a registry's page, found through the store."""
    page = Page(RANK, {"service.name": "job", "dl.rank": 3}, registry)
    endpoint = Endpoint(lambda: (registry.collect(), None), page, "127.0.0.1", 0, registry, store=store)
    try:
        yield endpoint
    finally:
        endpoint.close(5)


def copied(folder: Path) -> Path:
    """Copy the configuration that users copy, with a scrape each second."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.read_text().replace("scrape_interval: 5s", "scrape_interval: 1s"))
    return config


def found(base: str, expression: str) -> dict[frozenset[tuple[str, str]], float]:
    """Return the values of an expression by the labels that are ours."""
    servers.wait_until(lambda: servers.instant(base, expression), why_not=lambda: servers.api(base, "targets"))
    return {
        frozenset((name, value) for name, value in labels.items() if name not in ("job", "instance")): value
        for labels, value in servers.instant(base, expression)
    }


def labels(name: str, **more: str) -> frozenset[tuple[str, str]]:
    """Return a series' labels."""
    return frozenset({"__name__": name, "otel_scope_name": "train", **RANK, **more}.items())


@pytest.mark.parametrize("major", [2, 3])
def test_both_generations_scrape_what_was_recorded(major: int, tmp_path: Path) -> None:
    """With the one configuration file each generation stores every value, bucket and label as it was recorded."""
    registry = Registry()
    group = registry.group("train")
    group.instrument("loss.now").record(0.1, {"layer": 'a"b\\c\nd é'})
    group.instrument("broken").record(math.nan)
    group.instrument("checkpoint.success").record(2**40 + 1)
    histogram = group.declare("step", kind="histogram", unit="s", description="Steps.", boundaries=[0.1, 1, 10])
    for value in (0.05, 0.1, 5, 50):
        histogram.record(value)
    with serving(registry, tmp_path) as endpoint, servers.prometheus(copied(tmp_path), major=major) as base:
        assert found(base, "loss_now") == {labels("loss_now", layer='a"b\\c\nd é'): 0.1}
        assert found(base, "checkpoint_success_total") == {labels("checkpoint_success_total"): 2**40 + 1}
        assert [math.isnan(value) for value in found(base, "broken").values()] == [True]
        bounds = {"0.1": 2, "1.0": 2, "10.0": 3, "+Inf": 4}
        assert found(base, "step_seconds_bucket") == {
            labels("step_seconds_bucket", le=bound): count for bound, count in bounds.items()
        }
        assert found(base, "step_seconds_sum") == {labels("step_seconds_sum"): 55.15}
        assert found(base, "step_seconds_count") == {labels("step_seconds_count"): 4}
        [(target, value)] = found(base, "target_info").items()
        assert dict(target).items() >= {"service_name": "job", "dl_rank": "3"}.items()
        assert value == 1
        kinds = servers.api(base, "metadata")
        assert [kinds[name][0]["type"] for name in ("loss_now", "step_seconds")] == ["gauge", "histogram"]
        histogram.record(0.01)
        servers.wait_until(lambda: set(found(base, "step_seconds_count").values()) == {5})
        assert servers.api(base, "targets")["activeTargets"][0]["scrapeUrl"].startswith(endpoint.url)


NAMES = ["loss.now", "outer.<locals>.inner", 'a"quote', "back\\slash", "new\nline", "été 🚂", "9", "{x}", "a\tb", "#"]


def test_utf8_names(tmp_path: Path) -> None:
    """Prometheus 3 as it comes asks for UTF-8 names and gets every name and key as it was recorded."""
    registry = Registry()
    for index, name in enumerate(NAMES):
        registry.group("train").instrument(name).record(index, {name: name})
        registry.group("train").instrument(name + ".success").record(index)
    (tmp_path / "plain.yml").write_text(PLAIN)
    with serving(registry, tmp_path), servers.prometheus(tmp_path / "plain.yml") as base:
        everything = found(base, '{__name__=~"(?s).+",otel_scope_name="train"}')
        for index, name in enumerate(NAMES):
            assert everything[labels(name, **{name: name})] == index
            assert everything[labels(name + ".success_total")] == index


@pytest.mark.parametrize("major", [2, 3])
def test_no_text_spoils_the_scrape(major: int, tmp_path: Path) -> None:
    """Names, keys, descriptions and values of any characters arrive, or at least cost no other series."""
    registry = Registry()
    texts = ["\x00", "\r", "\x7f", "\u2028", "\ufeff", "\ud800", "\\", '"', "}", "{", "#", "\n# EOF\n", "a" * 900]
    for index, text in enumerate(texts):
        registry.group("train").instrument("x").record(index, {"text": text})
        registry.group("train").instrument(f"x{index}" + text[:9].strip("\0\ud800")).record(1, {f"k{text}": text})
        registry.group("train").declare(f"d{index}", kind="gauge", unit="", description=text, boundaries=None).record(1)
    (tmp_path / "plain.yml").write_text(PLAIN)
    with serving(registry, tmp_path), servers.prometheus(tmp_path / "plain.yml", major=major) as base:
        arrived = {dict(series)["text"]: value for series, value in found(base, "x").items()}
        assert arrived == {text.replace("\ud800", "?"): index for index, text in enumerate(texts)}
        assert set(found(base, "up").values()) == {1}


def test_exemplars(tmp_path: Path) -> None:
    """Prometheus 3 stores the exemplars of a histogram, through OpenMetrics."""
    registry = Registry()
    series = registry.group("train").declare("h", kind="histogram", unit="", description="", boundaries=[1]).series({})
    assert isinstance(series, Distribution)
    series.record(0.5)
    series.note(Exemplar(0.5, time.time_ns(), 0xABC, 0xDEF))
    (tmp_path / "plain.yml").write_text(PLAIN)
    flag = "--enable-feature=exemplar-storage"
    with serving(registry, tmp_path), servers.prometheus(tmp_path / "plain.yml", arguments=[flag]) as base:
        found(base, "h_count")
        now = time.time()
        [stored] = servers.api(base, "query_exemplars", query="h_bucket", start=str(now - 60), end=str(now + 60))
        assert stored["seriesLabels"]["le"] == "1.0"
        [exemplar] = stored["exemplars"]
        assert exemplar["labels"] == {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}
        assert float(exemplar["value"]) == 0.5


def test_targets_come_and_go(tmp_path: Path) -> None:
    """Prometheus finds a process when it starts and forgets it when it ends, without a restart."""
    registry = Registry()
    registry.group("train").instrument("x").record(1)
    (tmp_path / "targets").mkdir(mode=0o700)
    config = copied(tmp_path)
    config.write_text(config.read_text().replace("refresh_interval: 5s", "refresh_interval: 1s"))
    with servers.prometheus(config) as base:
        with serving(registry, tmp_path):
            assert found(base, "x") == {labels("x"): 1}
        servers.wait_until(lambda: not servers.api(base, "targets")["activeTargets"])
