"""Resource detectors for programs that make their own OpenTelemetry providers.

Entry points of ``opentelemetry_resource_detector``: name them in OTEL_EXPERIMENTAL_RESOURCE_DETECTORS, as
``tachograph_torchrun``, ``tachograph_slurm`` and ``tachograph_kubernetes``, behind ``service_instance``: older SDKs put
that one, whose ids are random, last where it is not named.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource, ResourceDetector

from tachograph.identity.environment import text
from tachograph.identity.program import is_agent
from tachograph.identity.rank import descends_from_rank, rank_attributes
from tachograph.identity.resource import instance_id, kubernetes_attributes, slurm_attributes
from tachograph.identity.run_id import run_id
from tachograph.recording.points import AttributeValue


class TorchrunResourceDetector(ResourceDetector):
    """The place in the job of a rank that torchrun started, or of torchrun itself: ``dl.*``, ``service.instance.id``.

    The SDK's own ``service.instance.id`` is new at each start; this one lets a restarted rank's series go on.
    """

    def detect(self) -> Resource:
        """Return the attributes; none where neither RANK is set nor this process is torchrun's own."""
        return Resource(_placed(os.environ) if is_agent() or text(os.environ, "RANK") else {})

    def is_process_dependent(self) -> bool:
        """Tell the SDK to detect again after a fork: launchers set RANK in the forked child."""
        return True


class SlurmResourceDetector(ResourceDetector):
    """The job of Slurm: ``slurm.*``, and for a task that ``srun`` started without torchrun its ``dl.*``."""

    def detect(self) -> Resource:
        """Return the attributes; none outside of a job."""
        environ = os.environ
        found = slurm_attributes(environ)
        by_torchrun = is_agent() or text(environ, "RANK")
        placed = _placed(environ) if found and not by_torchrun and text(environ, "SLURM_PROCID") else {}
        return Resource({**placed, **found})


class KubernetesResourceDetector(ResourceDetector):
    """The pod, as its specification describes it in variables: see :mod:`tachograph.identity.resource`."""

    def detect(self) -> Resource:
        """Return the ``k8s.*`` attributes; none outside of a pod."""
        return Resource(kubernetes_attributes(os.environ))


def _placed(environ: Mapping[str, str]) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {**rank_attributes(environ), "dl.run.id": run_id(environ)}
    helper = os.getpid() if descends_from_rank(environ, os.getpid()) else None
    host = {"host.name": socket.gethostname()}
    return {**found, "service.instance.id": instance_id({**host, **found}, helper=helper)}
