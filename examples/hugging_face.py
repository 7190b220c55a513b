"""A small vision transformer on scikit-learn's digits, with the Trainer of transformers; nothing here is of Tachograph.

tachograph run -- python examples/hugging_face.py
"""

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

digits = load_digits()
pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
data = [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, digits.target, strict=True)]
size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 64, "intermediate_size": 128}
model = ViTForImageClassification(ViTConfig(**size, num_hidden_layers=2, num_attention_heads=4, num_labels=10))
arguments = TrainingArguments(
    "out",
    num_train_epochs=10,
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=25,
    save_strategy="no",
    report_to="none",
)


def accuracy(predicted):  # noqa: ANN001, ANN201, D103
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


trainer = Trainer(model, arguments, train_dataset=data[:1500], eval_dataset=data[1500:], compute_metrics=accuracy)
trainer.train()
