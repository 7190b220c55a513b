"""The names of other libraries that bridges patch: the one table of them, with the versions that they were tried with.

Most of these names are private. Each is looked up when its module is imported: one that is not there is said once, and
the library works as without a bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class PatchedName(NamedTuple):
    """A name that is patched.

    Attributes:
        module: that defines it; the hook waits for its import.
        path: of the attribute within the module.
        note: the method of the library's notes that gets the call's arguments.
        brings: the method that returns the values by leaf which a call brings, before it runs; empty where no other
            bridge is called inside.
        optional: whether versions without it are as good.
        unseen: whether the patch's frame passes for one of the module: handlers walk up the stack past its file.
        makes: whether the note makes the patch itself, of the original, the bridge and the function for its errors.
    """

    module: str
    path: str
    note: str
    brings: str = ""
    optional: bool = False
    unseen: bool = False
    makes: bool = False


class Library(NamedTuple):
    """A library.

    Attributes:
        package: its distribution.
        oldest: version that it was tried with.
        newest: version that it was tried with.
        home: the module here, and the name of its instrumentor.
        roots: the packages with whose import it begins.
        names: those that are patched.
    """

    package: str
    oldest: str
    newest: str
    home: tuple[str, str]
    roots: tuple[str, ...]
    names: tuple[PatchedName, ...]


_NO_CURVES = (
    *("audio", "embedding", "figure", "graph", "histogram_raw", "image", "image_with_boxes", "images", "mesh"),
    *("onnx_graph", "pr_curve", "pr_curve_raw", "tensor", "text", "video"),
)


def _writer(module: str) -> Iterable[PatchedName]:
    yield PatchedName(module, "SummaryWriter.add_scalar", "add_scalar")
    yield PatchedName(module, "SummaryWriter.add_scalars", "add_scalars")
    yield PatchedName(module, "SummaryWriter.add_histogram", "add_histogram")
    yield PatchedName(module, "SummaryWriter.add_hparams", "add_hparams", brings="hparams_bring")
    for kind in _NO_CURVES:
        yield PatchedName(module, f"SummaryWriter.add_{kind}", f"add_{kind}", optional=True)


def _lightning(package: str) -> Iterable[PatchedName]:
    connector = f"{package}.trainer.connectors.logger_connector.logger_connector"
    yield PatchedName(connector, "_LoggerConnector.log_metrics", "lightning_log", brings="lightning_brings")
    yield PatchedName(f"{package}.trainer.trainer", "_log_hyperparams", "hyperparameters", brings="placeholder")


def _fabric(package: str) -> Iterable[PatchedName]:
    yield PatchedName(f"{package}.fabric", "Fabric.log_dict", "fabric_log", brings="fabric_brings")


_RUN, _NOOP = "wandb.sdk.wandb_run", "wandb.sdk.lib.noop_run"
_TRACKING = "mlflow.tracking._tracking_service.client"
_OF_MLFLOW = ("dict", "figure", "image", "table", "text")  # each is made an artifact of

LIBRARIES: Mapping[str, Library] = {
    "tensorboard": Library(
        *("torch", "2.0", "2.15", ("tensorboard", "TensorBoardInstrumentor"), ("torch.utils.tensorboard",)),
        names=tuple(_writer("torch.utils.tensorboard.writer")),
    ),
    "tensorboardx": Library(
        *("tensorboardX", "2.6", "2.6", ("tensorboard", "TensorBoardXInstrumentor"), ("tensorboardX",)),
        names=tuple(_writer("tensorboardX.writer")),
    ),
    "wandb": Library(
        *("wandb", "0.20", "0.31", ("wandb", "WandbInstrumentor"), ("wandb",)),
        names=(
            PatchedName(_RUN, "Run.log", "log"),
            PatchedName(_RUN, "Run.__init__", "begin"),
            PatchedName(_RUN, "Run._config_callback", "config"),
            PatchedName(_RUN, "Run._summary_update_callback", "summary"),
            PatchedName(_RUN, "Run.define_metric", "define_metric"),
            PatchedName(_RUN, "Run.log_artifact", "log_artifact", optional=True),
            PatchedName(_RUN, "Run.alert", "alert", optional=True),
            PatchedName(_NOOP, "NoopRun.log", "disabled_log", makes=True),
            PatchedName(_NOOP, "NoopRun.__init__", "begin"),
            PatchedName(_NOOP, "NoopRun.define_metric", "define_metric"),
            PatchedName(_NOOP, "NoopRun.finish", "finish_disabled"),
        ),
    ),
    "mlflow": Library(
        *("mlflow-skinny", "2.22", "3.17", ("mlflow", "MlflowInstrumentor"), ("mlflow",)),  # mlflow needs that one, too
        names=(
            PatchedName(_TRACKING, "TrackingServiceClient.log_metric", "log_metric"),
            PatchedName(_TRACKING, "TrackingServiceClient.log_batch", "log_batch"),
            PatchedName(_TRACKING, "TrackingServiceClient.log_param", "log_param"),
            PatchedName(_TRACKING, "TrackingServiceClient.set_tag", "set_tag", optional=True),
            PatchedName(_TRACKING, "TrackingServiceClient.log_artifact", "log_artifact", optional=True),
            PatchedName(_TRACKING, "TrackingServiceClient.log_artifacts", "log_artifact", optional=True),
            PatchedName(_TRACKING, "TrackingServiceClient._log_artifact_async", "log_artifact", optional=True),
            PatchedName(_TRACKING, "TrackingServiceClient.log_inputs", "log_inputs", optional=True),
            *(
                PatchedName("mlflow.tracking.client", f"MlflowClient.log_{kind}", f"log_{kind}", "artifacts", True)
                for kind in _OF_MLFLOW
            ),
        ),
    ),
    "trackio": Library(
        *("trackio", "0.43", "0.43", ("trackio", "TrackioInstrumentor"), ("trackio",)),
        names=(
            PatchedName("trackio.run", "Run.__init__", "begin"),
            PatchedName("trackio.run", "Run.log", "log"),
            PatchedName("trackio.run", "Run.log_system", "log_system", optional=True),
            PatchedName("trackio.run", "Run.log_artifact", "log_artifact", optional=True),
            PatchedName("trackio.run", "Run.alert", "alert", optional=True),
        ),
    ),
    "logging": Library(
        *("Python", "3.11", "3.13", ("logging", "LoggingInstrumentor"), ("logging",)),
        names=(PatchedName("logging", "Logger.callHandlers", "call_handlers", unseen=True),),
    ),
    "tqdm": Library(
        *("tqdm", "4.66", "4.70", ("tqdm", "TqdmInstrumentor"), ("tqdm",)),
        names=(PatchedName("tqdm.std", "tqdm.set_postfix", "set_postfix"),),
    ),
    "ray": Library(
        *("ray", "2.60", "2.60", ("ray", "RayInstrumentor"), ("ray.train",)),
        names=(
            PatchedName(
                "ray.train.v2._internal.execution.worker_group.thread_runner", "ThreadRunner.is_running", "is_running"
            ),
        ),
    ),
    "transformers": Library(
        *("transformers", "4.57", "5.24", ("trainers", "TransformersInstrumentor"), ("transformers",)),
        names=(
            PatchedName("transformers.trainer_callback", "CallbackHandler.on_log", "on_log", brings="logs_bring"),
            PatchedName("transformers.trainer_callback", "CallbackHandler.on_train_begin", "on_train_begin"),
        ),
    ),
    "accelerate": Library(
        *("accelerate", "1.10", "1.15", ("trainers", "AccelerateInstrumentor"), ("accelerate",)),
        names=(
            PatchedName("accelerate.accelerator", "Accelerator.log", "log", brings="values_bring"),
            PatchedName("accelerate.accelerator", "Accelerator.init_trackers", "init_trackers"),
        ),
    ),
    "lightning": Library(
        *("lightning", "2.5", "2.6", ("trainers", "LightningInstrumentor")),
        ("lightning", "pytorch_lightning", "lightning_fabric"),
        names=(
            *_lightning("lightning.pytorch"),
            *_lightning("pytorch_lightning"),
            *_fabric("lightning.fabric"),
            *_fabric("lightning_fabric"),
        ),
    ),
}
