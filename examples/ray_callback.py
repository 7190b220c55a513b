"""Ray Train, with our callback: tachograph run -- python examples/ray_callback.py."""

import sys

import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tachograph.integrations.ray import TachographCallback


def train() -> None:  # noqa: D103 - runs in each worker
    for step in range(5):
        ray.train.report({"train/loss": 1 / (step + 1), "step": step, "memory": {"used": 2.0**step}})


storage = sys.argv[1] if sys.argv[1:] else None
ray.init(num_cpus=2, include_dashboard=False)
trainer = TorchTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="example", storage_path=storage, callbacks=[TachographCallback()]),
)
trainer.fit()
