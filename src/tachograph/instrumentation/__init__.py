"""OpenTelemetry instrumentors: they record telemetry of other libraries without a change to the program.

Each instrumentor is loaded when you first use it.

Other packages of Tachograph also use ``profiles``, ``child_environment``, ``bridges`` and ``bridges.trainers``;
``distro`` and ``logs_specs`` are entry points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.recording.lazy_names import load_name

if TYPE_CHECKING:
    from tachograph.instrumentation.bridges.logging import LoggingInstrumentor
    from tachograph.instrumentation.bridges.mlflow import MlflowInstrumentor
    from tachograph.instrumentation.bridges.ray import RayInstrumentor
    from tachograph.instrumentation.bridges.tensorboard import TensorBoardInstrumentor, TensorBoardXInstrumentor
    from tachograph.instrumentation.bridges.tqdm import TqdmInstrumentor
    from tachograph.instrumentation.bridges.trackio import TrackioInstrumentor
    from tachograph.instrumentation.bridges.trainers import (
        AccelerateInstrumentor,
        LightningInstrumentor,
        TransformersInstrumentor,
    )
    from tachograph.instrumentation.bridges.wandb import WandbInstrumentor
    from tachograph.instrumentation.torch_monitor import TorchMonitorInstrumentor
    from tachograph.instrumentation.torch_step import TorchStepInstrumentor
    from tachograph.instrumentation.torchelastic import TorchElasticInstrumentor

__all__ = [
    "AccelerateInstrumentor",
    "LightningInstrumentor",
    "LoggingInstrumentor",
    "MlflowInstrumentor",
    "RayInstrumentor",
    "TensorBoardInstrumentor",
    "TensorBoardXInstrumentor",
    "TorchElasticInstrumentor",
    "TorchMonitorInstrumentor",
    "TorchStepInstrumentor",
    "TqdmInstrumentor",
    "TrackioInstrumentor",
    "TransformersInstrumentor",
    "WandbInstrumentor",
]

# By the module that has them; each is loaded at its first use.
_NAMES = {
    "bridges.logging": ("LoggingInstrumentor",),
    "bridges.mlflow": ("MlflowInstrumentor",),
    "bridges.ray": ("RayInstrumentor",),
    "bridges.tensorboard": ("TensorBoardInstrumentor", "TensorBoardXInstrumentor"),
    "bridges.tqdm": ("TqdmInstrumentor",),
    "bridges.trackio": ("TrackioInstrumentor",),
    "bridges.trainers": ("AccelerateInstrumentor", "LightningInstrumentor", "TransformersInstrumentor"),
    "bridges.wandb": ("WandbInstrumentor",),
    "torch_monitor": ("TorchMonitorInstrumentor",),
    "torch_step": ("TorchStepInstrumentor",),
    "torchelastic": ("TorchElasticInstrumentor",),
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _NAMES, name)
