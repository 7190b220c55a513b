"""OpenTelemetry instrumentors: they record telemetry of other libraries without a change to the program.

Each instrumentor is loaded when you first use it.

Other packages of Tachograph also use ``profiles``, ``child_environment``, ``bridges`` and ``bridges.trainers``;
``distro`` and ``logs_specs`` are entry points.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOME = {
    "AccelerateInstrumentor": "bridges.trainers",
    "LightningInstrumentor": "bridges.trainers",
    "LoggingInstrumentor": "bridges.logging",
    "MlflowInstrumentor": "bridges.mlflow",
    "RayInstrumentor": "bridges.ray",
    "TensorBoardInstrumentor": "bridges.tensorboard",
    "TensorBoardXInstrumentor": "bridges.tensorboard",
    "TorchElasticInstrumentor": "torchelastic",
    "TorchMonitorInstrumentor": "torch_monitor",
    "TorchStepInstrumentor": "torch_step",
    "TqdmInstrumentor": "bridges.tqdm",
    "TrackioInstrumentor": "bridges.trackio",
    "TransformersInstrumentor": "bridges.trainers",
    "WandbInstrumentor": "bridges.wandb",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
