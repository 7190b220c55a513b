"""Settings: variables and keyword arguments, read and run with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import hostile
import tachograph
from in_process import ProcessKind, environment, folder
from tachograph.pipeline.settings import check_keywords, read_settings


class Settings(NamedTuple):
    """Variables and keyword arguments."""

    environ: dict[str, str]
    keywords: dict[str, Any]


_OTLP = ("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "INSECURE", "CLIENT_KEY")
_OF_SIGNALS = tuple(f"OTEL_EXPORTER_OTLP_{signal}_{name}" for signal in ("METRICS", "TRACES", "LOGS") for name in _OTLP)
_VARIABLES = (
    *("OTEL_SDK_DISABLED", "OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_SERVICE_NAME"),
    *("OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT", "OTEL_METRIC_EXPORT_INTERVAL"),
    *("OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "OTEL_METRICS_EXEMPLAR_FILTER"),
    *(f"OTEL_EXPORTER_OTLP_{name}" for name in _OTLP),
    *_OF_SIGNALS,
    *("TACHOGRAPH_RUN", "TACHOGRAPH_STORE", "TACHOGRAPH_HELPERS", "TACHOGRAPH_SYSTEM_METRICS", "TACHOGRAPH_JOIN"),
    *("TACHOGRAPH_SPOOL_LIMIT", "TACHOGRAPH_PROMETHEUS_REGISTRY", "TACHOGRAPH__OWNER", "TACHOGRAPH__START_NS"),
    *("TACHOGRAPH_CURVES", "TACHOGRAPH_RECORD_PROGRAM"),
    *("INFLUXDB_HOST", "INFLUXDB_PORT", "INFLUXDB_DATABASE", "INFLUXDB_ORG", "INFLUXDB_TOKEN", "INFLUXDB_UID"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "HOME"),
    *(
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NTASKS",
        "SLURM_STEP_ID",
        "K8S_JOB_UID",
        "K8S_POD_NAME",
        "XDG_STATE_HOME",
    ),
)
_SAID = (
    *(
        "otlp",
        "prometheus",
        "console",
        "jsonl",
        "influxdb",
        "none",
        "otlp,prometheus",
        "none,otlp",
        ",",
        "OTLP ",
        "zipkin",
    ),
    *("true", "false", "TRUE", "0", "1", "1000", "-1", "1e3", "nan", "inf", "65535", "65536", "9" * 400, "0x10", "٣"),
    *("http://127.0.0.1:1", "http://[::1", "http://[::1]:1", "ftp://a", "127.0.0.1:1", "http://a:b:c", "http://:80"),
    *(
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1?a=b#c",
        "http://user:pass@127.0.0.1:1",
        "unix:///a",
        "//a",
        "http://",
    ),
    *("http/protobuf", "http/json", "grpc", "gzip", "none", "deflate", "a=b", "a=b,c=d", "a=%zz", "=", "a", "a=b=c"),
    *("delta", "cumulative", "lowmemory", "always_on", "trace_based", "10M", "1G", "1e9", "10 M", "~", "~/a", "~é"),
)
_KEYWORDS = (
    *("metrics", "traces", "logs", "endpoint", "protocol", "headers", "timeout", "compression", "interval"),
    *("service_name", "run_id", "resource", "resource_labels", "prometheus_host", "prometheus_port"),
    *("prometheus_registry", "store", "jsonl", "system_metrics", "set_global", "join", "tags", "notes"),
)


def _settings(random: Random) -> Settings:
    environ = {}
    for name in random.sample(_VARIABLES, random.choice((0, 1, 1, 2, 4))):
        said = random.choice(_SAID) if random.random() < 0.7 else hostile.text(random)
        environ[name] = said.replace("\0", "") if random.random() < 0.98 else "\udcff" + said.replace("\0", "")
    keywords = {}
    for name in random.sample(_KEYWORDS, random.choice((0, 1, 1, 2))):
        usual = (
            *_SAID,
            ["otlp"],
            [],
            {"a": "b"},
            ["console", print],
            {"a": 1, "": 2},
            Path("a"),
            1,
            0.5,
            True,
            ["dl.rank"],
        )
        keywords[name] = hostile.thing(random, usual)
    if random.random() < 0.02:
        keywords[hostile.text(random)] = 1
    return Settings(environ, keywords)


def _judge_settings(given: Sequence[Settings]) -> str:
    (asked,) = given
    try:
        check_keywords(asked.keywords)
        read_settings(asked.environ, **asked.keywords)
    except (TypeError, ValueError) as error:
        return _names(str(error), asked)
    except Exception as error:  # noqa: BLE001 - the finding
        return f"{type(error).__name__} instead of a ValueError: {error!s:.300}"
    return ""


def _names(message: str, asked: Settings) -> str:
    """Return the missing parts of a message: the name of a setting, or its end."""
    if len(message) > 5000:
        return f"a message of {len(message)} characters: {message:.300}"
    said = (*_VARIABLES, *asked.environ, *asked.keywords, *(repr(name)[1:200] for name in asked.keywords))
    if any(name in message for name in said):
        return ""
    return f"a message that names no setting: {message:.300}"


def _started(random: Random) -> Settings:
    """Return settings with which a pipeline can run in a test: nothing beyond its folder, no other machine."""
    asked = _settings(random)
    apart = {"HOME", "XDG_STATE_HOME", "TACHOGRAPH_STORE", "OTEL_EXPORTER_PROMETHEUS_HOST", "INFLUXDB_HOST"}
    apart |= {"store", "jsonl", "prometheus_host", "system_metrics", "TACHOGRAPH_SYSTEM_METRICS"}
    environ = {key: value for key, value in asked.environ.items() if key not in apart and _passes(value)}
    keywords = {key: value for key, value in asked.keywords.items() if key not in apart}
    return Settings(environ, {"prometheus_port": 0, **keywords})


def _passes(value: str) -> bool:
    try:
        return len(os.fsencode(value)) < 100_000
    except UnicodeEncodeError:
        return False


def _judge_start(given: Sequence[Settings]) -> str:
    (asked,) = given
    with environment({**asked.environ, "TACHOGRAPH_STORE": str(folder() / "started")}):
        try:
            pipeline = tachograph.start(**asked.keywords)
            tachograph.put_metric("x", 1, "fuzz")
            pipeline.shutdown(0.05)
        except (TypeError, ValueError) as error:
            return _names(str(error), asked)
        except Exception as error:  # noqa: BLE001 - the finding
            return f"{type(error).__name__} instead of a ValueError: {error!s:.300}"
        finally:
            tachograph.shutdown(0)
    return ""


SETTINGS_KINDS: dict[str, ProcessKind] = {
    "settings": ProcessKind("settings: variables and arguments", 40, _settings, _judge_settings),
    "start": ProcessKind("start() with such settings, and its end", 2, _started, _judge_start),
}
