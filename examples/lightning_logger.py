"""Lightning, with our logger: python examples/lightning_logger.py."""

import lightning
import torch

import tachograph
from tachograph.integrations.lightning import TachographLogger


class Model(lightning.LightningModule):  # noqa: D101 - a line through points
    def __init__(self, rate=0.1):  # noqa: ANN001, ANN204, ARG002
        super().__init__()
        self.save_hyperparameters()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, _number):  # noqa: ANN001, ANN201, D102
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):  # noqa: ANN201, D102
        return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
with tachograph.start(hub=True) as pipeline:
    trainer = lightning.Trainer(logger=TachographLogger(), max_epochs=2, log_every_n_steps=2, accelerator="cpu")
    trainer.fit(Model(), data)
    print("recorded:", pipeline.hub_url)
