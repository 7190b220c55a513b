"""The files of ``collector-config`` by themselves: valid, complete, closed to strangers, frank about what lacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from collectors import CONFIGS, Ports, files
from servers import find

pytestmark = pytest.mark.otelcol

LAYERS = {
    "agent": ("agent-scrape", "agent-scrape-hub"),
    "gateway": ("gateway-aggregate", "gateway-hub", "gateway-influxdb", "gateway-remote-write", "gateway-tls"),
    "local": (),
}
REQUIRED = {
    "GATEWAY": "http://127.0.0.1:1",
    "GATEWAY_TOKEN": "t",
    "REMOTE_WRITE": "http://127.0.0.1:1/api/v1/write",
    "INFLUXDB": "http://127.0.0.1:1",
    "HUB": "http://127.0.0.1:1",
    "HUB_TOKEN": "t",
    "CERTIFICATE": "certificate.pem",
    "KEY": "key.pem",
}
# Each layer alone and all together, here; every other combination takes minutes.
CONFIGURED = [
    (name, *layers)
    for name, of_name in LAYERS.items()
    for size in range(len(of_name) + 1)
    for layers in combinations(of_name, size)
]
_READ = re.compile(r"\$\{env:(\w+)(:-)?")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with everything that must be set; an empty string takes a variable away."""
    variables = {**REQUIRED, "QUEUE": str(folder), **Ports.free().environment(), **more}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", *REQUIRED))}
    return {**kept, **{name: value for name, value in variables.items() if value}}


def otelcol(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the collector to its end, which has to come by itself."""
    return subprocess.run(
        [find("otelcol"), *arguments],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def resolved(folder: Path, *names: str) -> dict[str, Any]:
    """Return the configuration that the collector makes of these files, defaults included."""
    env = {name: value for name, value in environment(folder).items() if name not in Ports.free().environment()}
    done = otelcol("print-config", *files(*names), "--format=json", env=env)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def code(name: str) -> str:
    """Return a file without its comments."""
    return re.sub(r"(^|\s)#.*", "", (CONFIGS / f"{name}.yaml").read_text())


def all_files() -> list[str]:
    """Return the names of all files but the builder's."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "builder")


def told(names: tuple[str, ...]) -> object:
    """Return a combination as a parameter; between one layer and all of them it is long."""
    some = 1 < len(names) - 1 < len(LAYERS[names[0]])
    return pytest.param(names, id="+".join(names), marks=[pytest.mark.long] if some else [])


@pytest.mark.parametrize("names", [told(names) for names in CONFIGURED])
def test_every_combination_is_valid(names: tuple[str, ...], tmp_path: Path) -> None:
    """Each file is valid with the layers that are made for it, in any combination."""
    done = otelcol("validate", *files(*names), env=environment(tmp_path))
    assert done.returncode == 0, done.stderr


def test_no_file_is_forgotten() -> None:
    """Each file of the folder is one of those that are tested here."""
    assert all_files() == sorted({name for names in CONFIGURED for name in names})


@pytest.mark.parametrize("name", all_files())
def test_each_variable_is_explained(name: str) -> None:
    """The head of a file names each variable that it reads, those that must be set as such, and no other."""
    read = {found[1]: bool(found[2]) for found in _READ.finditer(code(name))}
    head = "".join(_head(name))
    explained = set(re.findall(r"^#   ([A-Z][A-Z_]+(?:, [A-Z_]+)*)(?=  | )(?!=)", head, re.MULTILINE))
    listed = {one for names in explained for one in names.split(", ")}
    assert listed == read.keys() - {"HOME", "XDG_STATE_HOME"}
    assert {one for one in read if one in REQUIRED} == {one for one, default in read.items() if not default} - {"HOME"}


def _head(name: str) -> Iterator[str]:
    for line in (CONFIGS / f"{name}.yaml").read_text().splitlines(keepends=True):
        if not line.startswith("#"):
            return
        yield line


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("GATEWAY", ("agent",)),
        ("GATEWAY_TOKEN", ("agent",)),
        ("GATEWAY_TOKEN", ("gateway",)),
        ("REMOTE_WRITE", ("gateway", "gateway-remote-write")),
        ("INFLUXDB", ("gateway", "gateway-influxdb")),
        ("HUB", ("gateway", "gateway-hub")),
        ("HUB_TOKEN", ("gateway", "gateway-hub")),
        ("CERTIFICATE", ("gateway", "gateway-tls")),
        ("KEY", ("gateway", "gateway-tls")),
    ],
)
def test_a_missing_variable_is_said_at_start(missing: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """A collector that lacks what must be set ends at once, and names the variable."""
    done = otelcol(*files(*names), env=environment(tmp_path, **{missing: ""}))
    assert done.returncode == 1
    assert re.search(rf'unset environment variable.*"{missing}"', done.stderr)
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("GATEWAY", "http://the gateway", ("agent",)),
        ("HUB", "http://the hub", ("gateway", "gateway-hub")),
        ("OTLP_HTTP", "nowhere.invalid:4318", ("agent",)),
        ("OTLP_GRPC", "127.0.0.1", ("gateway",)),
        ("KEY", "nowhere.pem", ("gateway", "gateway-tls")),
        ("SLOW_MS", "fast", ("gateway",)),
        ("QUEUE_BYTES", "much", ("agent",)),
    ],
)
def test_a_wrong_value_is_said_at_start(variable: str, value: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """A collector with a malformed endpoint, address or number ends at once with an error."""
    done = otelcol(*files(*names), env=environment(tmp_path, **{variable: value}))
    assert done.returncode == 1
    assert "Error: " in done.stderr


@pytest.mark.parametrize("name", ["agent", "gateway"])
def test_an_unwritable_queue_is_said_at_start(name: str, tmp_path: Path) -> None:
    """A collector that cannot keep its queue ends at once, and names the folder."""
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("")
    done = otelcol(*files(name), env=environment(tmp_path, QUEUE=str(in_the_way / "queue")))
    assert done.returncode == 1
    assert str(in_the_way) in done.stderr


@pytest.mark.parametrize("names", [(name, *layers) for name, layers in LAYERS.items()], ids="+".join)
def test_by_default_only_this_machine_is_spoken_to(names: tuple[str, ...], tmp_path: Path) -> None:
    """Without variables every address that a collector listens on is of loopback, at the ports that the code knows."""
    found = resolved(tmp_path, *names)
    otlp = found["receivers"]["otlp"]["protocols"]
    listening = [otlp["http"]["endpoint"], otlp["grpc"]["endpoint"]]
    assert listening == ["127.0.0.1:4318", "127.0.0.1:4317"]
    if "prometheus" in found["exporters"]:
        assert found["exporters"]["prometheus"]["endpoint"] == "127.0.0.1:8889"
    if names[0] != "local":
        assert found["extensions"]["health_check"]["endpoint"] == "127.0.0.1:13133"
        (reader,) = found["service"]["telemetry"]["metrics"]["readers"]
        assert reader["pull"]["exporter"]["prometheus"]["host"] == "127.0.0.1"


def test_the_slim_distribution_has_what_the_files_use() -> None:
    """``builder.yaml`` lists the module of each component that a file uses, and no other."""
    offered = otelcol("components", env=os.environ).stdout
    used = {
        dict(re.findall(r"- name: (\w+)\n\s+module: (\S+) ", _section(offered, section)))[component]
        for name in all_files()
        for section in ("receivers", "processors", "exporters", "connectors", "extensions")
        for component in re.findall(r"^  (\w+)[\w/]*:", _section(code(name), section), re.MULTILINE)
    }
    listed = re.findall(r"gomod: (\S+) ", (CONFIGS / "builder.yaml").read_text())
    assert sorted(module for module in listed if "/confmap/" not in module) == sorted(used)


def _section(text: str, name: str) -> str:
    found = re.search(rf"^{name}:\n((?:[ ].*\n|\n)*)", text, re.MULTILINE)
    return found[1] if found else ""
