"""The resource attributes of this process, read from its environment.

A Kubernetes pod knows itself only by what its specification hands on ("downward API"). These variables are read, each
named after its attribute; the shorter ones in use elsewhere count, too::

    env:
      - {name: K8S_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      - {name: K8S_POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
      - {name: K8S_NAMESPACE_NAME, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
      - {name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
      - name: K8S_JOB_NAME
        valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
      - name: K8S_JOB_UID
        valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
      - {name: K8S_CONTAINER_NAME, value: trainer}
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from tachograph.identity.environment import Setting, clean, resource_variable, store, text
from tachograph.identity.program import is_agent, program_name, worker_parent
from tachograph.identity.rank import descends_from_rank, is_helper, owner_mark, rank_attributes
from tachograph.identity.run_id import file_safe, run_id
from tachograph.recording.naming import prometheus_label
from tachograph.recording.points import AttributeValue, attributes_key

__all__ = [
    "SERIES_KEYS",
    "file_safe",
    "instance_id",
    "is_agent",
    "is_helper",
    "kubernetes_attributes",
    "owner_mark",
    "rank_attributes",
    "resource_attributes",
    "run_id",
    "series_keys",
    "series_labels",
    "service_name",
    "slurm_attributes",
    "store",
]

# The attributes that tell the processes of a page apart, and so are labels on each series.
SERIES_KEYS = ("dl.rank", "dl.role", "dl.run.id")

# OpenTelemetry semantic conventions, "Service": the namespace for version 5 UUIDs of service.instance.id.
_INSTANCES = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")

# srun(1) and sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; OpenTelemetry has no conventions for Slurm.
_SLURM = {
    "slurm.job.id": ("SLURM_JOB_ID",),
    "slurm.job.name": ("SLURM_JOB_NAME",),
    "slurm.job.partition": ("SLURM_JOB_PARTITION",),
    "slurm.step.id": ("SLURM_STEP_ID",),
    "slurm.array.job.id": ("SLURM_ARRAY_JOB_ID",),
    "slurm.array.task.id": ("SLURM_ARRAY_TASK_ID",),
    "slurm.cluster.name": ("SLURM_CLUSTER_NAME",),
    "slurm.node.name": ("SLURMD_NODENAME",),
}
# OpenTelemetry semantic conventions, "Kubernetes", for the attributes; the variables are a choice, see above.
_KUBERNETES = {
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.namespace.name": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE"),
    "k8s.node.name": ("K8S_NODE_NAME", "NODE_NAME"),
    "k8s.job.name": ("K8S_JOB_NAME",),
    "k8s.job.uid": ("K8S_JOB_UID",),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
}


def service_name(
    environ: Mapping[str, str], *, explicit: str | None = None, orig_argv: Sequence[str] | None = None
) -> str:
    """Return ``service.name``: given, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES' one, else the program's name."""
    given = explicit or text(environ, "OTEL_SERVICE_NAME") or resource_variable(environ).get("service.name")
    return clean(given) if given else program_name(orig_argv)


def slurm_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``slurm.*`` attributes of a job's process; none outside of a job."""
    return _texts(environ, _SLURM) if text(environ, "SLURM_JOB_ID") else {}


def kubernetes_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``k8s.*`` attributes of a pod's process; none outside of a pod."""
    in_pod = text(environ, "KUBERNETES_SERVICE_HOST", "K8S_POD_NAME", "K8S_POD_UID", "K8S_JOB_UID")
    return _texts(environ, _KUBERNETES) if in_pod else {}


def resource_attributes(
    environ: Mapping[str, str] | None = None,
    *,
    service_name: str | None = None,
    run_id: str | None = None,
    extra: Mapping[str, AttributeValue] | None = None,
    host: str | None = None,
    pid: int | None = None,
    orig_argv: Sequence[str] | None = None,
) -> dict[str, AttributeValue]:
    """Return all resource attributes of this process.

    The user's attributes win over detected ones: first the arguments ``service_name`` and ``run_id``, then ``extra``,
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES (OpenTelemetry specification, "Resource SDK"). ``service.instance.id``
    follows from the result, see :func:`instance_id`.

    Args:
        environ: environment variables; by default this process's.
        service_name: the service's name.
        run_id: the run's id; see :func:`tachograph.identity.run_id.run_id`.
        extra: further attributes.
        host: the machine's name; by default the system's.
        pid: the process; by default this one.
        orig_argv: the command with the interpreter and its options; by default this process's.

    Raises:
        TypeError: ``extra`` holds a value that OpenTelemetry cannot carry.
        ValueError: a key of ``extra`` is empty.
    """
    environ = os.environ if environ is None else environ
    given = dict(attributes_key(extra or {}))
    pid = os.getpid() if pid is None else pid
    found: dict[str, AttributeValue] = {
        "host.name": socket.gethostname() if host is None else host,
        "process.pid": pid,
        **rank_attributes(environ, orig_argv),
        **slurm_attributes(environ),
        **kubernetes_attributes(environ),
        **resource_variable(environ),
        "service.name": _service_name(environ, explicit=service_name, orig_argv=orig_argv),
        "dl.run.id": _run_id(environ, explicit=run_id, orig_argv=orig_argv),
        **given,
    }
    found.update({key: value for key, value in (("service.name", service_name), ("dl.run.id", run_id)) if value})
    helper = pid if is_beside(found, environ, pid) else None
    found.setdefault("service.instance.id", instance_id(found, helper=helper))
    return {clean(key): clean(value) if isinstance(value, str) else value for key, value in found.items()}


def is_beside(attributes: Mapping[str, AttributeValue], environ: Mapping[str, str], pid: int) -> bool:
    """Tell whether a process stands beside another one of the same place: a helper, or a worker without a rank."""
    return descends_from_rank(environ, pid) or ("dl.rank" not in attributes and worker_parent() is not None)


# The parameters of resource_attributes have the names that start() has for them.
_service_name, _run_id = service_name, run_id


def instance_id(attributes: Mapping[str, AttributeValue], *, helper: int | None = None) -> str:
    """Return ``service.instance.id``, the same after a restart: its series go on.

    It is the version 5 UUID of ``run=<dl.run.id>/role=<dl.role>/rank=<dl.rank>``, or for a process without a rank of
    ``run=…/role=…/host=<host.name>/node_rank=<dl.node_rank>``; values percent-encoded, missing ones empty. A helper
    that records has ``/helper=<pid>`` behind it.
    """
    where = ("rank",) if "dl.rank" in attributes else ("host", "node_rank")
    keys = {"run": "dl.run.id", "role": "dl.role", "rank": "dl.rank", "host": "host.name", "node_rank": "dl.node_rank"}
    parts = [f"{name}={quote(clean(str(attributes.get(keys[name], ''))), safe='')}" for name in ("run", "role", *where)]
    if helper is not None:
        parts.append(f"helper={helper}")
    return str(uuid.uuid5(_INSTANCES, "/".join(parts)))


def series_labels(attributes: Mapping[str, AttributeValue], keys: Sequence[str] = SERIES_KEYS) -> dict[str, str]:
    """Return the labels of each series of this process; a missing attribute is no label.

    Keys that become the same label share it, their values joined by ``;`` (OpenTelemetry specification, "Prometheus
    and OpenMetrics Compatibility", "Metric Attributes").
    """
    labels: dict[str, str] = {}
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            label, said = prometheus_label(key), value if isinstance(value, str) else json.dumps(value)
            labels[label] = f"{labels[label]};{said}" if label in labels else said
    return labels


def series_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that an argument ``resource_labels`` names.

    Raises:
        TypeError: it is no sequence of strings.
        ValueError: a key is empty.
    """
    given = Setting("resource_labels=", keys)
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise given.wrong_type("a sequence of resource attributes' keys")
    return tuple(dict.fromkeys(Setting("resource_labels=", key).string() for key in keys))


def _texts(environ: Mapping[str, str], variables: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found = {key: text(environ, *names) for key, names in variables.items()}
    return {key: value for key, value in found.items() if value}


class Announced:
    """The resource attributes of the process's pipeline, also after its end: series go on under the same labels.

    Attributes:
        labels: keys of those that are labels on each Prometheus series.
    """

    def __init__(self) -> None:
        self.labels: Sequence[str] = SERIES_KEYS
        self._attributes: Mapping[str, AttributeValue] = {}
        self._pid = 0

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The resource attributes; none before the first ``start()``, and in a forked child before its own."""
        return self._attributes if self._pid == os.getpid() else {}

    def announce(self, attributes: Mapping[str, AttributeValue], labels: Sequence[str]) -> None:
        """Take over the attributes that a pipeline sends."""
        self._attributes, self.labels, self._pid = attributes, labels, os.getpid()


announced = Announced()
