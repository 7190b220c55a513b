"""The files of ``deploy``: containers, commands and variables as they will run, however a file says so."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from places import ROOT
from servers import find

DEPLOY = ROOT / "deploy"
CONFIGS = ROOT / "collector-config"
OVERLAYS = sorted(path.name for path in (DEPLOY / "kubernetes" / "overlays").iterdir())
PLACES = ("compose", "base", *OVERLAYS)  # where containers are described
COLLECTOR = "otel/opentelemetry-collector-contrib"
SECRET = "s3cret"  # noqa: S105 - stands where a real one will be

_GIVEN = re.compile(r"\$\{(\w+):[?-][^}]*\}")  # Compose: ${NAME:?what to do}, ${NAME:-default}


@dataclass(frozen=True)
class Container:
    """A program that will run: of Compose, or in a pod.

    Args:
        name: where it is, and what it is called there.
        image: with its tag.
        command: program and arguments, as far as the file has them.
        env: variables with a value; a secret's is a stand-in, what only a running pod knows is empty.
        ports: numbers by name.
        mounts: where folders of the host, or of a volume, are in it.
    """

    name: str
    image: str
    command: list[str]
    env: dict[str, str]
    ports: dict[str, int] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)

    @property
    def is_collector(self) -> bool:
        """Tell whether it is an OpenTelemetry Collector."""
        return self.image.startswith(COLLECTOR + ":")

    @property
    def is_ours(self) -> bool:
        """Tell whether it is built from our Dockerfile."""
        return self.image.startswith("tachograph:")

    @property
    def configs(self) -> list[Path]:
        """Return the collector's files that it is given, as they lie in the checkout."""
        given = [word.partition("=")[2] for word in self.command if word.startswith("--config=/etc/tachograph/")]
        return [CONFIGS / Path(path).name for path in given]


def compose() -> dict[str, Any]:
    """Return the Compose file, with a stand-in for what a user has to give."""
    text = (DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(_GIVEN.sub(SECRET, text)))


def composed() -> Iterator[Container]:
    """Yield the containers of the Compose file."""
    for name, service in compose()["services"].items():
        volumes = dict(volume.split(":")[1::-1] for volume in service.get("volumes", ()))
        yield Container(
            f"compose: {name}",
            service["image"],
            [*service.get("entrypoint", ()), *service.get("command", ())],
            service.get("environment", {}),
            mounts=volumes,
        )


@functools.cache
def built(overlay: str) -> tuple[dict[str, Any], ...]:
    """Return what kustomize makes of an overlay, or of the folder ``base``."""
    folder = DEPLOY / "kubernetes" / ("base" if overlay == "base" else f"overlays/{overlay}")
    done = subprocess.run(
        [find("kustomize"), "build", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def pods(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the templates of pods in a resource, wherever they are."""
    for value in document.values():
        if isinstance(value, Mapping):
            if "containers" in value.get("spec", {}):
                yield dict(value)
            else:
                yield from pods(value)


def contained(overlay: str) -> Iterator[Container]:
    """Yield the containers of an overlay; those that begin before the job, too."""
    for document in built(overlay):
        for pod in pods(document):
            for one in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
                yield Container(
                    f"{overlay}: {document['kind']} {document['metadata']['name']}, {one['name']}",
                    one["image"],
                    [*one.get("command", ()), *one.get("args", ())],
                    _expanded({variable["name"]: _value(variable) for variable in one["env"]}),
                    {port["name"]: port["containerPort"] for port in one.get("ports", ())},
                    {mount["mountPath"]: mount["name"] for mount in one.get("volumeMounts", ())},
                )


def _value(variable: Mapping[str, Any]) -> str:
    if "value" in variable:
        return str(variable["value"])
    return SECRET if "secretKeyRef" in variable["valueFrom"] else ""


def _expanded(env: dict[str, str]) -> dict[str, str]:
    """Kubernetes documentation, "Define Dependent Environment Variables": $(NAME) of those above it."""
    return {name: re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], value) for name, value in env.items()}


def containers(place: str) -> list[Container]:
    """Return all containers of a place."""
    found = list(composed() if place == "compose" else contained(place))
    assert found, place
    return found


def read_by(*configs: Path) -> dict[str, bool]:
    """Return the variables that collector files read, and whether each must be set."""
    found: dict[str, bool] = {}
    for path in configs:
        code = re.sub(r"(^|\s)#.*", "", path.read_text(encoding="utf-8"))
        for name, default in re.findall(r"\$\{env:(\w+)(:-)?", code):
            found[name] = found.get(name, False) or not default
    return found


def default(variable: str, config: str = "gateway") -> str:
    """Return the default of a variable of a collector file."""
    found = re.search(rf"\$\{{env:{variable}:-([^}}]*)\}}", (CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"))
    assert found, variable
    return found[1]


def written() -> list[Path]:
    """Return every file of Compose, Kubernetes, Slurm and systemd."""
    folders = [DEPLOY / name for name in ("compose", "kubernetes", "slurm", "systemd")]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
