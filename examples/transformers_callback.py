"""The Trainer of transformers, with our callback: python examples/transformers_callback.py."""

import torch
from transformers import Trainer, TrainingArguments

import tachograph
from tachograph.integrations.transformers import TachographCallback


class Model(torch.nn.Module):  # noqa: D101 - a line through points
    def __init__(self):  # noqa: ANN204
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):  # noqa: ANN001, ANN201, D102
        shown = self.linear(x)
        return {"loss": (shown - labels).square().mean(), "logits": shown}


data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
arguments = TrainingArguments("out", logging_steps=2, report_to="none", save_strategy="no", use_cpu=True)
with tachograph.start(hub=True) as pipeline:
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[TachographCallback()])
    trainer.train()
    trainer.evaluate()
    print("recorded:", pipeline.hub_url)
