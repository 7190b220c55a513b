"""A small network on two or more processes with DistributedDataParallel; nothing here is of Tachograph.

tachograph run -- torchrun --nproc-per-node 2 examples/plain_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(4096, 256)
labels = inputs[:, :10].argmax(dim=1)

bar = tqdm(range(3000), disable=dist.get_rank() != 0)
for _ in bar:
    batch = torch.randint(len(inputs), (256,))
    loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bar.set_postfix(loss=loss.item())

dist.destroy_process_group()
