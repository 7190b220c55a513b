"""Accelerate, with our tracker: python examples/accelerate_tracker.py."""

import torch
from accelerate import Accelerator

import tachograph
from tachograph.integrations.accelerate import TachographTracker

with tachograph.start(hub=True) as pipeline:
    accelerator = Accelerator(log_with=TachographTracker(), cpu=True)
    accelerator.init_trackers("example", config={"lr": 0.1})
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(20):
        loss = model(torch.randn(8, 4, device=accelerator.device)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"train/loss": loss.item()}, step=step)
    accelerator.end_training()
    print("recorded:", pipeline.hub_url)
