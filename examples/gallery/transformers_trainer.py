"""The Trainer of Transformers, without its three traps.

This example shows how to use Class-Balanced Softmax with `Trainer(compute_loss_func=...)`. A custom loss has
three traps there: `eval_loss` becomes the shifted loss, `label_smoothing_factor` is ignored, and gradient
accumulation multiplies the gradient. `loss_func` has none of them, and `compute_metrics` adds recall by group. The
model is a tiny BERT with random weights, and the sentences are generated, so that nothing is downloaded.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from longtail import Groups, class_counts
from longtail.integrations.transformers import compute_metrics, loss_func

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# Sentences of eight words out of 60. Each of six classes prefers ten of the words, and shares five of them with the
# next.


def sentences(sizes: list[int], seed: int) -> list[dict[str, torch.Tensor]]:
    """Return tokens and labels."""
    random, found = np.random.default_rng(seed), []
    for label, size in enumerate(sizes):
        for _ in range(size):
            own, any_word = 5 * label + random.integers(0, 10, 8), random.integers(0, 60, 8)
            words = np.where(random.random(8) < 0.8, own, any_word)
            found.append({"input_ids": torch.tensor(words), "labels": torch.tensor(label)})
    return found


train, test = sentences([400, 220, 120, 65, 36, 20], seed=0), sentences([100] * 6, seed=1)
counts = class_counts(torch.stack([row["labels"] for row in train]), num_classes=6)
groups = Groups.from_quantiles(counts)

# ## Training
#
# The second run has one more argument, `compute_loss_func`. It accumulates two batches and smooths labels, as the first
# does. For beta found during training, add `AutoBetaCallback(loss)` and a validation set.


def metrics_of(**options: object) -> dict[str, float]:
    """Train a tiny model and return its metrics on test data."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=60, num_labels=6, hidden_dropout_prob=0.0, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=10, learning_rate=3e-3, per_device_train_batch_size=16,
            gradient_accumulation_steps=2, label_smoothing_factor=0.05, per_device_eval_batch_size=200,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=train, compute_metrics=compute_metrics(groups), **options)
        trainer.train()
        return trainer.evaluate(test)


runs = {
    "loss of the model": metrics_of(),
    "loss_func(counts, beta=1)": metrics_of(compute_loss_func=loss_func(counts, beta=1.0)),
}

# ## Recall by group
#
# `eval_loss` is the same function in both runs, so its values can be compared.

names = ["recall", *(f"recall_{name}" for name in groups.names)]
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for place, (name, found) in enumerate(runs.items()):
    recalls = [100 * found[f"eval_{one}"] for one in names]
    print(
        f"{name}: eval_loss {found['eval_loss']:.3f},",
        ", ".join(f"{n} {r:.1f} %" for n, r in zip(names, recalls, strict=True)),
    )
    label = f"{name}: eval_loss {found['eval_loss']:.2f}"
    bars = axes.bar(np.arange(4) + 0.4 * place - 0.2, recalls, 0.38, label=label, color=("#b8bec6", "#1f6feb")[place])
    axes.bar_label(bars, fmt="%.0f", fontsize=8)
axes.set_xticks(range(4), ["all classes", *groups.names])
axes.set(ylabel="recall on test sentences (%)", ylim=(0, 108))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
figure.savefig(out / "transformers_trainer.png", dpi=150)
