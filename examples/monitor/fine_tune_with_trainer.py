"""Fine-tune with the Trainer of Transformers, and watch it with two more lines.

A tiny BERT with random weights stands for the checkpoint that you would load. Run it with
``python examples/monitor/fine_tune_with_trainer.py``; it needs no network.
"""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import rankscope

WORDS, TOKENS, LABELS = 100, 16, 4


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Random words; the label is the quarter of the vocabulary that most of them are from."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(LABELS, (count,), generator=generator)
    words = torch.randint(WORDS, (count, TOKENS), generator=generator)
    of_label = labels[:, None] * (WORDS // LABELS) + words % (WORDS // LABELS)
    chosen = torch.rand(words.shape, generator=generator) < 0.4
    ids = torch.where(chosen, of_label, words)
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


def main(steps: int, folder: str, every: int = 10) -> rankscope.Monitor:
    """Train; the monitor, with its table and alarms."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=WORDS, num_hidden_layers=3, num_labels=LABELS, **shape)
    model = BertForSequenceClassification(config)
    data = sequences(512)
    arguments = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=16, learning_rate=1e-3,
        logging_steps=every, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data[:480])

    probe = {"input_ids": torch.stack([row["input_ids"] for row in data[480:496]])}
    monitor = rankscope.Monitor(model, probe, every=every, folder=f"{folder}/rankscope")
    monitor.attach(trainer)  # these two lines are all

    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rank/residual/L03" in entry]
    print(f"The trainer's log has {len(logged)} records of the monitor, beside its own losses.")
    residuals = [record.get("rank/residual", 3) for record in monitor.history.records]
    print(f"Relative residual of the last layer: {residuals[0]:.2f} → {residuals[-1]:.2f}.")
    print(monitor)
    return monitor


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args().steps, temporary)
