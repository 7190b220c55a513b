"""The files of ``deploy`` are well-formed, pinned, and agree with the code in every name, port and path."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path, PurePath

import pytest
import yaml

from deployed import COLLECTOR, CONFIGS, DEPLOY, PLACES, ROOT, SECRET, compose, containers, default, read_by, written
from servers import find
from tachograph.cli.hub import build_parser as hub_options
from tachograph.cli.init.grafana import datasources
from tachograph.cli.run import read_options
from tachograph.exporters.otlp.settings import _DEFAULT_PORT as OTLP_PORTS
from tachograph.hub.server import HUB_PORT
from tachograph.logger.influx_target import DATABASE
from tachograph.logger.influx_target import PORT as INFLUXDB_PORT
from tachograph.pipeline.settings import PROMETHEUS_PORT
from tachograph.version import __version__

COLLECTOR_VERSION = "0.158.0"  # with which the collector files were tested
OTLP = set(OTLP_PORTS.values())
COLLECTORS_OWN = int(default("OWN_METRICS_PORT"))
SCRAPED = int(default("PROMETHEUS").rpartition(":")[2])
HEALTH = int(default("HEALTH").rpartition(":")[2])
OF_A_COLLECTOR = {*OTLP, COLLECTORS_OWN, SCRAPED, HEALTH}
OF_OTHERS = {9090, 3000, 29400}  # Prometheus, Grafana and torchrun's rendezvous, each its own default
HOSTS = {
    "collector": OF_A_COLLECTOR,
    "tachograph-gateway": OF_A_COLLECTOR,
    "tachograph-agent": OTLP,
    "gateway": OTLP,
    "gateway.cluster": OTLP,
    "gateway.example": OTLP,
    "hub": {HUB_PORT},
    "influxdb": {INFLUXDB_PORT},
    "prometheus": {9090},
    "train-0.train": {29400},
    "0.0.0.0": {*OF_A_COLLECTOR, HUB_PORT},  # noqa: S104 - as the files have it
    "127.0.0.1": {*OF_A_COLLECTOR, HUB_PORT, INFLUXDB_PORT, 9090, 3000, 14318},  # the last beside a hub on one machine
}
OF_THE_RUNTIME = {"GOMEMLIMIT", "OTEL_RESOURCE_ATTRIBUTES", "K8S_NODE_NAME"}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a checker to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}, cwd=ROOT
    )


def test_compose_files_follow_the_specification() -> None:
    """``check-jsonschema`` finds nothing against the Compose Specification's schema, which it brings along."""
    files = [str(path) for path in sorted((DEPLOY / "compose").glob("compose*.yaml"))]
    done = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files) == 2


def test_what_compose_mounts_is_there() -> None:
    """Each bind mount is a file or folder of the checkout; each volume is declared; no service lacks."""
    found = compose()
    for service in found["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / "compose" / source).exists() if source.startswith(".") else source in found["volumes"]
    for name in ("train", "collector", "hub", "prometheus", "influxdb", "grafana"):
        assert name in found["services"]


def test_only_this_machine_reaches_what_compose_publishes() -> None:
    """Published ports are of 127.0.0.1, and the same number inside and outside."""
    published = [port for service in compose()["services"].values() for port in service.get("ports", ())]
    assert published
    for port in published:
        host, outside, inside = port.split(":")
        assert host == "127.0.0.1"
        assert outside == inside


def test_a_missing_secret_is_named_before_compose_starts_anything() -> None:
    """Each secret is ``${NAME:?…}``, and ``.env.example`` lists it, without a value."""
    text = (DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8")
    listed = (DEPLOY / "compose" / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+):\?", text)) == set(re.findall(r"^(\w+)=$", listed, re.MULTILINE))
    assert set(re.findall(r"\$\{?(\w+)", text)) - set(re.findall(r"\$\{(\w+):\?", text)) == {"RUN"}


@pytest.mark.parametrize("place", PLACES)
def test_images_are_pinned(place: str) -> None:
    """Each image has the number of a version; ours has the package's, and there is one version of the collector."""
    for container in containers(place):
        name, _, tag = container.image.rpartition(":")
        assert re.fullmatch(r"v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", tag), container.image
        assert not container.is_ours or tag == __version__
        assert not container.is_collector or (name, tag) == (COLLECTOR, COLLECTOR_VERSION)


def test_the_dockerfile_copies_what_is_there() -> None:
    """Bases are pinned, sources exist and are not ignored, extras are the package's, the store is the user's."""
    text = (DEPLOY / "compose" / "Dockerfile").read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"python:3\.1[0-4]\.\d+-slim-\w+", base) for base in bases)
    ignored = (DEPLOY / "compose" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for sources in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored
    (extras,) = re.findall(r"\)\[(.+)\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    assert re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE) == [f"{HUB_PORT} {PROMETHEUS_PORT}"]
    assert f"tachograph:{__version__}" in text
    (store,) = re.findall(r"TACHOGRAPH_STORE=(\S+)", text)
    assert re.search(rf"install --directory --owner=tachograph --mode=0700 {store}$", text, re.MULTILINE)


@pytest.mark.parametrize("path", written(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_hosts_and_ports_are_the_codes(path: Path) -> None:
    """Whatever host and port a file names, that host listens there by the code's, or by its own, default."""
    text = path.read_text(encoding="utf-8")
    for host, port in re.findall(r"(?<![\w.$}-])([a-zA-Z0-9][\w.-]*):(\d{4,5})\b(?!:\d)", text):
        if not host.isdigit():
            assert int(port) in HOSTS[host], f"{host}:{port}"
    for port in re.findall(r"[pP]ort: (\d+)|--port[= ](\d+)|_PORT[=:]-?(\d{4,5})", text):
        assert int("".join(port)) in {*OF_A_COLLECTOR, *OF_OTHERS, HUB_PORT}


@pytest.mark.parametrize("place", PLACES)
def test_variables_of_a_container_are_read(place: str) -> None:
    """A collector gets all variables that its files demand, and no other; a job and a hub get what our code reads."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for container in containers(place):
        if container.is_collector:
            reads = read_by(*container.configs)
            assert set(container.env) - OF_THE_RUNTIME <= set(reads), container.name
            demanded = {name for name, must in reads.items() if must} - {"HOME", "XDG_STATE_HOME"}
            assert demanded <= set(container.env), container.name
        elif container.is_ours:
            for name in set(container.env) - {"OMP_NUM_THREADS", "HUB_TOKEN"}:
                assert name.removeprefix("OTEL_EXPORTER_OTLP_").removeprefix("INFLUXDB_") in code, name


@pytest.mark.parametrize("place", PLACES)
def test_what_is_written_is_written_to_a_volume(place: str) -> None:
    """Queue, store and file of a container are below a folder that is mounted; so is its configuration."""
    for container in containers(place):
        for name in ("QUEUE", "TELEMETRY_FILE"):
            path = PurePath(container.env.get(name, "/etc/tachograph" if container.is_collector else "/"))
            mounted = {PurePath(mount) for mount in container.mounts}
            assert path == PurePath("/") or mounted & {path, *path.parents}, (container.name, path)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.otelcol
def test_the_real_collector_takes_files_and_variables(place: str) -> None:
    """``otelcol validate`` passes with the arguments and variables of each container that runs it."""
    for container in containers(place):
        if container.is_collector:
            command = [word.replace("/etc/tachograph", str(CONFIGS)) for word in container.command]
            mounted = {folder for mount in container.mounts for folder in (mount, str(PurePath(mount).parent))}
            env = {name: "/" if value in mounted else value for name, value in container.env.items()}
            done = run(find("otelcol"), "validate", *command, **env)
            assert done.returncode == 0, (container.name, done.stderr)
            done = run(find("otelcol"), "print-config", "--format=json", *command, **env)
            found = json.loads(done.stdout)
            protocols = found["receivers"]["otlp"]["protocols"]
            assert protocols["http"]["endpoint"] == env.get("OTLP_HTTP", f"127.0.0.1:{OTLP_PORTS['http/protobuf']}")
            assert protocols["grpc"]["endpoint"] == env.get("OTLP_GRPC", f"127.0.0.1:{OTLP_PORTS['grpc']}")
            (reader,) = found["service"]["telemetry"]["metrics"]["readers"]
            own = reader["pull"]["exporter"]["prometheus"]
            in_a_job = "0.0.0.0" not in protocols["http"]["endpoint"]  # noqa: S104 - as the files have it
            assert (own["host"], own["port"]) == ("127.0.0.1" if in_a_job else "0.0.0.0", COLLECTORS_OWN)  # noqa: S104


@pytest.mark.parametrize("place", PLACES)
def test_commands_are_understood(place: str) -> None:
    """The options of ``tachograph run`` and ``tachograph hub`` exist; a hub that others may reach has a token."""
    ours = [container for container in containers(place) if container.is_ours]
    assert ours
    for container in ours:
        words = container.command[container.command[:1] == ["tachograph"] :]
        if words[0] == "run":
            assert read_options(words[1:]).command[0] == "torchrun"
        else:
            assert words[0] == "hub"
            assert hub_options().parse_args(words[1:]).port == HUB_PORT
            assert "TACHOGRAPH_HUB_TOKEN" in container.env


@pytest.mark.parametrize("place", PLACES)
def test_a_job_has_the_token_of_whom_it_sends_to(place: str) -> None:
    """A job's headers have a token where the receiver of its OTLP asks for one: a gateway, or a hub beyond loopback."""
    sending = [container for container in containers(place) if "OTEL_EXPORTER_OTLP_ENDPOINT" in container.env]
    assert sending or place == "base"  # which an overlay tells where to send to
    for container in sending:
        said = container.env.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        assert (said == f"Authorization=Bearer%20{SECRET}") == (place in ("compose", "podmonitor"))


def test_grafana_of_compose_finds_its_data_and_dashboards() -> None:
    """Data sources are what the code writes for Compose's hosts; dashboards are where they are looked for."""
    wanted = datasources(
        prometheus="http://prometheus:9090", influxdb=f"http://influxdb:{INFLUXDB_PORT}", database="tplr"
    )
    assert (DEPLOY / "compose" / "datasources.yaml").read_text(encoding="utf-8") == wanted
    mounts = [volume.split(":")[1] for volume in compose()["services"]["grafana"]["volumes"]]
    (provider,) = (DEPLOY / "grafana" / "provisioning" / "dashboards").glob("*.yaml")
    (source,) = yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"]
    assert source["options"]["path"] in mounts


def test_influxdb_of_compose_has_the_database_of_all_who_write() -> None:
    """A MetricsLogger, the collector and Grafana use the database that InfluxDB makes at its start."""
    services = compose()["services"]
    used = {services["influxdb"]["environment"]["INFLUXDB_DB"]}
    used |= {services[name]["environment"]["INFLUXDB_DATABASE"] for name in ("train", "collector")}
    assert used == {DATABASE}


@pytest.mark.prometheus
def test_prometheus_of_compose_is_configured() -> None:
    """``promtool`` takes the file, and its targets are the collector's and the hub's."""
    path = DEPLOY / "compose" / "prometheus.yml"
    done = run(find("promtool"), "check", "config", "--syntax-only", str(path))
    assert done.returncode == 0, done.stderr
    (rules,) = yaml.safe_load(path.read_text(encoding="utf-8"))["rule_files"]
    mounts = [volume.split(":")[:2] for volume in compose()["services"]["prometheus"]["volumes"]]
    assert ["../prometheus", str(Path(rules).parent.parent)] in mounts


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    """``systemd-analyze verify`` finds nothing, and ``security`` no more than 2 of 10 points of exposure."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NOT TESTED: there is no systemd-analyze")
    copy = tmp_path / unit.name
    text = unit.read_text(encoding="utf-8")
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    done = run(analyze, "verify", str(copy))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    security = run(analyze, "security", "--offline=true", "--threshold=20", str(copy))
    assert security.returncode == 0, security.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_what_exists(unit: Path) -> None:
    """A unit's options exist, its variables are read, and its files are below the folder that systemd makes for it."""
    parser = RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign] # as documented
    parser.read_string(unit.read_text(encoding="utf-8"))
    text = unit.read_text(encoding="utf-8")
    words = shlex.split(parser["Service"]["ExecStart"])
    env = dict(
        pair.split("=", 1) for line in re.findall(r"^Environment=(.+)$", text, re.MULTILINE) for pair in line.split()
    )
    state = f"%S/{parser['Service']['StateDirectory']}"
    if unit.stem == "tachograph-hub":
        arguments = [re.sub(r"\$\{(\w+)\}", lambda match: env[match[1]], word) for word in words[2:]]
        assert hub_options().parse_args(arguments).port == HUB_PORT
        assert env["TACHOGRAPH_STORE"] == state
    else:
        assert (CONFIGS / Path(words[-1]).name).is_file()
        example = (DEPLOY / "systemd" / "agent.env.example").read_text(encoding="utf-8")
        env |= dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))
        assert env["QUEUE"] == f"{state}/queue"
        reads = read_by(CONFIGS / "agent.yaml")
        assert set(env) - OF_THE_RUNTIME <= set(reads)
        assert {name for name, must in reads.items() if must} - {"HOME", "XDG_STATE_HOME"} <= set(env)
