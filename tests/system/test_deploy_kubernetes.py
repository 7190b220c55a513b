"""The overlays of ``deploy/kubernetes``: built by the real kustomize, and checked against Kubernetes's own schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes_validate
import pytest

from deployed import CONFIGS, DEPLOY, OVERLAYS, built, contained, pods
from tachograph.hub.guard import PUBLIC
from tachograph.identity.resource import kubernetes_attributes

# What an overlay may use of those that Kubernetes has no schema for, by their documentation: Prometheus Operator, "API
# reference", PodMonitorSpec and PodMetricsEndpoint; Kubeflow Training Operator, PyTorchJobSpec and ReplicaSpec.
CUSTOM = {
    "PodMonitor": (
        "monitoring.coreos.com/v1",
        {
            "selector": {"matchLabels", "matchExpressions"},
            "podMetricsEndpoints": {"port", "path", "interval", "params", "honorLabels"},
        },
    ),
    "PyTorchJob": ("kubeflow.org/v1", {"nprocPerNode": set(), "pytorchReplicaSpecs": {"Master", "Worker"}}),
}
RESTARTS = {"Always", "OnFailure", "Never", "ExitCode"}
VERSION = "1.37"


def of_kind(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the resources of these kinds."""
    return [document for document in built(overlay) if document["kind"] in kinds]


def labels(overlay: str) -> list[dict[str, str]]:
    """Return the labels of each template of pods."""
    return [pod["metadata"]["labels"] for document in built(overlay) for pod in pods(document)]


def selected(selector: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """Tell whether a selector, of labels alone or of labels and expressions, selects a pod with these labels."""
    if not selector.keys() & {"matchLabels", "matchExpressions"}:
        return found.items() >= selector.items()
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return found.items() >= selector.get("matchLabels", {}).items() and all(
        found.get(one["key"]) in one["values"] for one in expressions
    )


def named(value: object, key: str) -> Iterator[Any]:
    """Yield everything behind a key, however deep."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from named(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from named(inner, key)


@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
def test_an_overlay_follows_the_schemas_of_kubernetes(overlay: str) -> None:
    """Each resource is valid, without an unknown field; custom ones have only fields that their documentation has."""
    assert built(overlay)
    for document in built(overlay):
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, VERSION, strict=True)
            continue
        version, fields = CUSTOM[document["kind"]]
        assert document["apiVersion"] == version
        assert set(document["spec"]) <= set(fields)
        for name, inner in fields.items():
            value = document["spec"][name]
            for one in value if isinstance(value, list) else [value]:
                assert not inner or set(one) <= inner


def test_the_pods_of_a_pytorchjob_are_valid() -> None:
    """The templates in a PyTorchJob are pods by Kubernetes's schema, with the container that the operator looks for."""
    (job,) = of_kind("pytorchjob", "PyTorchJob")
    assert isinstance(job["spec"]["nprocPerNode"], str)
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        assert set(replicas) == {"replicas", "restartPolicy", "template"}
        assert replicas["restartPolicy"] in RESTARTS
        assert [one["name"] for one in replicas["template"]["spec"]["containers"]] == ["pytorch"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": replicas["template"]["spec"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_selects_pods_selects_some(overlay: str) -> None:
    """Each Service, PodMonitor and NetworkPolicy selects a pod of the overlay, and names ports that the pod has."""
    ports = {name: port for one in contained(overlay) for name, port in one.ports.items()}
    for document in of_kind(overlay, "Service", "PodMonitor", "NetworkPolicy"):
        spec = document["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        assert any(selected(selector, found) for found in labels(overlay)), document["metadata"]["name"]
    for document in of_kind(overlay, "PodMonitor", "NetworkPolicy"):
        used = {port for port in named(document["spec"], "port") if isinstance(port, str)}
        assert used
        assert used <= set(ports)
    for document in of_kind(overlay, "Service"):
        for port in document["spec"]["ports"]:
            assert ports.get(port["name"], port["port"]) == port["port"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_volumes_and_maps_that_are_used_exist(overlay: str) -> None:
    """Each ConfigMap that a pod mounts is there under its hashed name, each mounted volume too, in one namespace."""
    maps = {document["metadata"]["name"] for document in of_kind(overlay, "ConfigMap")}
    for document in built(overlay):
        assert document["metadata"]["namespace"] == "tachograph"
        claims = {claim["metadata"]["name"] for claim in document.get("spec", {}).get("volumeClaimTemplates", ())}
        for pod in pods(document):
            volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())} | claims
            assert {mount["name"] for found in named(pod["spec"], "volumeMounts") for mount in found} <= volumes
            assert {volume["name"] for volume in named(pod["spec"], "configMap")} <= maps


def test_the_map_holds_the_collectors_files() -> None:
    """The ConfigMap has every file of ``collector-config`` that a fleet can use, byte for byte, and fits into one."""
    (found,) = of_kind("daemonset", "ConfigMap")
    wanted = {path.name: path.read_text(encoding="utf-8") for path in CONFIGS.glob("*.yaml")}
    assert found["data"] == {name: text for name, text in wanted.items() if name not in ("builder.yaml", "local.yaml")}
    assert sum(map(len, found["data"].values())) < 2**20


@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
def test_a_job_knows_its_place(overlay: str) -> None:
    """What a training pod is told of itself is what our resource attributes read, and its run has an id."""
    (job,) = {one.name: one for one in contained(overlay) if "torchrun" in one.command}.values() or [None]
    assert job is not None
    told = {name: value or name for name, value in job.env.items()}
    found = kubernetes_attributes(told)
    assert {f"k8s.{what}" for what in ("pod.name", "pod.uid", "namespace.name", "node.name", "container.name")} <= set(
        found
    )
    assert {name for name in told if name.startswith("K8S_")} == {name.upper().replace(".", "_") for name in found}
    assert "TACHOGRAPH_RUN" in told or any(word.startswith("--rdzv-id=$(K8S_JOB_UID)") for word in job.command)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_telemetry_never_holds_a_job_up(overlay: str) -> None:
    """In a job's pod nothing of ours has a probe that it waits for, or a Secret that must be there."""
    of_jobs = [pod for document in of_kind(overlay, "Job", "PyTorchJob") for pod in pods(document)]
    assert of_jobs
    for pod in of_jobs:
        assert not list(named(pod, "startupProbe"))
        assert not list(named(pod, "readinessProbe"))
        assert all(secret.get("optional") for secret in named(pod, "secretKeyRef"))
        assert all(one["restartPolicy"] == "Always" for one in pod["spec"].get("initContainers", ()))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_are_locked_in(overlay: str) -> None:
    """No container gains rights, none is privileged, and collectors and hubs write to their volumes alone."""
    for document in built(overlay):
        for pod in pods(document):
            assert pod["spec"]["automountServiceAccountToken"] is False
            for one in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
                locked = one["securityContext"]
                assert locked["capabilities"] == {"drop": ["ALL"]}
                assert locked["allowPrivilegeEscalation"] is False
                assert locked.get("readOnlyRootFilesystem") or "torchrun" in one["args"]
                assert "memory" in one["resources"]["limits"]


@pytest.mark.parametrize("overlay", ["podmonitor", "daemonset-podmonitor"])
def test_scrapes_ask_for_classic_names(overlay: str) -> None:
    """PodMonitors scrape the path of ours, and ask for the names that dashboards and rules have."""
    endpoints = [one for document in of_kind(overlay, "PodMonitor") for one in document["spec"]["podMetricsEndpoints"]]
    assert endpoints
    assert {one["path"] for one in endpoints} <= PUBLIC
    assert all(one.get("params") == {"escaping": ["underscores"]} for one in endpoints if one["port"] != "own")


def test_the_readme_lists_every_overlay() -> None:
    """The table of ``deploy/kubernetes/README.md`` has a row for each overlay."""
    text = (DEPLOY / "kubernetes" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == OVERLAYS
