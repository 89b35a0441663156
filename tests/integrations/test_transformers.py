"""Our loss, metrics and AutoBeta in the real Trainer, with tiny random models; the naive use has three traps."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from longtail import ClassBalancedSoftmaxLoss, Groups, class_counts, fit_shift, shift_in_training
from longtail.integrations.transformers import AutoBetaCallback, compute_metrics, loss_func

CLASSES = 3
COUNTS = [60, 12, 3]


def model(kind=BertForSequenceClassification):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=CLASSES, **sizes, **dropout))


def data(samples, seed=0, *, tokens=False):
    """Sentences of six words; each class likes other words. Labels of tokens are unevenly ignored."""
    random = np.random.RandomState(seed)
    found = []
    for _ in range(samples):
        label = random.choice(CLASSES, p=np.array(COUNTS) / sum(COUNTS))
        words = np.where(random.rand(6) < 0.5, random.randint(0, 20, 6), 3 * label + random.randint(0, 6, 6))
        labels = np.where(np.arange(6) < random.randint(1, 7), random.randint(0, CLASSES, 6), -100)
        found.append({"input_ids": torch.tensor(words), "labels": torch.tensor(labels if tokens else label)})
    return found


@pytest.fixture
def trainer(tmp_path):
    def make(net, train, **options):
        settings = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
        settings |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "num_train_epochs": 1}
        settings |= {"per_device_train_batch_size": 8, "save_strategy": "no", "weight_decay": 0.0}
        names = ("eval_dataset", "compute_loss_func", "compute_metrics", "callbacks")
        given = {name: options.pop(name) for name in names if name in options}
        settings |= {"output_dir": str(tmp_path / "out"), **options}
        return Trainer(net, TrainingArguments(**settings), train_dataset=train, **given)

    return make


def logits_of(net, rows):
    with torch.no_grad():
        return net.eval()(torch.stack([row["input_ids"] for row in rows])).logits, torch.stack(
            [row["labels"] for row in rows]
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_first_training_loss_and_eval_loss(trainer, smoothing):
    """Training has our loss with the Trainer's smoothing; evaluation has the loss of a Trainer without ours."""
    train, held_out = data(8), data(21, 1)
    logits, labels = logits_of(model(), train)
    expected = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5, label_smoothing=smoothing)(logits, labels)
    ours = trainer(
        model(), train, eval_dataset=held_out, compute_loss_func=loss_func(COUNTS, beta=1.5),
        label_smoothing_factor=smoothing, per_device_eval_batch_size=21,
    )  # fmt: skip
    before = ours.evaluate()["eval_loss"]
    assert ours.train().training_loss == pytest.approx(expected.item(), rel=1e-5)
    plain = trainer(
        model(), train, eval_dataset=held_out, label_smoothing_factor=smoothing, per_device_eval_batch_size=21
    )
    assert before == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
    logits, labels = logits_of(model(), held_out)
    assert before == pytest.approx(F.cross_entropy(logits, labels, label_smoothing=smoothing).item(), rel=1e-5)
    assert before != pytest.approx(ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)(logits, labels).item(), rel=1e-2)


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
def test_accumulation_gives_the_gradient_of_one_batch(trainer, kind):
    train, weights = data(8, tokens=kind is BertForTokenClassification), []
    for size, steps in ((8, 1), (2, 4)):
        net = model(kind)
        trainer(
            net, train, compute_loss_func=loss_func(COUNTS, beta=1.5), per_device_train_batch_size=size,
            gradient_accumulation_steps=steps, label_smoothing_factor=0.1,
        ).train()  # fmt: skip
        weights.append(net.state_dict())
    start = model(kind).state_dict()
    assert any(not torch.allclose(weights[0][name], start[name], atol=1e-3) for name in start)
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, msg=name)


def test_hook_trains_the_same_model(trainer):
    """``shift_in_training`` on the classifier, with the loss inside the model, is the same training."""
    train, held_out = data(24), data(16, 1)
    one, other = model(), model()
    ours = trainer(one, train, eval_dataset=held_out, compute_loss_func=loss_func(COUNTS, beta=1.2))
    shift_in_training(other.classifier, COUNTS, beta=1.2)
    hooked = trainer(other, train, eval_dataset=held_out)
    ours.train()
    hooked.train()
    for (name, value), twin in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(twin, value, msg=name)
    assert ours.evaluate()["eval_loss"] == pytest.approx(hooked.evaluate()["eval_loss"], rel=1e-5)


def test_best_model_is_chosen_by_recall_of_groups(trainer):
    groups = Groups.from_indices(head=[0], tail=[1, 2])
    train, held_out = data(40), data(60, 1)
    net = model()
    found = trainer(
        net, train, eval_dataset=held_out, compute_loss_func=loss_func(COUNTS, beta=1.0),
        compute_metrics=compute_metrics(groups), eval_strategy="epoch", save_strategy="epoch", num_train_epochs=3,
        metric_for_best_model="recall", load_best_model_at_end=True,
    )  # fmt: skip
    found.train()
    logits, labels = logits_of(net, held_out)
    recalls = [(logits[labels == c].argmax(1) == c).double().mean().item() for c in range(CLASSES)]
    metrics = found.evaluate()
    assert metrics["eval_recall"] == pytest.approx(np.mean(recalls))
    assert metrics["eval_recall_tail"] == pytest.approx(np.mean(recalls[1:]))
    assert metrics["eval_recall"] == max(entry.get("eval_recall", 0) for entry in found.state.log_history)


def test_auto_beta_moves_and_resumes(trainer, tmp_path):
    """Resumed from a checkpoint, it has the same betas; evaluation after training, e.g. of test data, moves nothing."""
    train, held_out, test = data(96), data(150, 1), data(50, 2)
    counts = class_counts(torch.stack([row["labels"] for row in train]), CLASSES)
    settings = {"eval_dataset": held_out, "eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 3}

    class Watch(TrainerCallback):
        def on_evaluate(self, args, state, control, model=None, **kwargs):
            self.shift = fit_shift(*logits_of(model, held_out), counts)

    def run(out, **more):
        loss, watch, net = loss_func(counts, beta=0.5), Watch(), model()
        callback = AutoBetaCallback(loss)
        one = trainer(
            net, train, compute_loss_func=loss, callbacks=[callback, watch], output_dir=str(out), **settings | more
        )
        return one, callback, watch, net

    whole, callback, watch, net = run(tmp_path / "a")
    whole.train()
    beta = callback.loss.loss.beta
    assert len(callback.auto.trace) == 3
    assert beta != 0.5
    assert callback.auto.trace[-1].delta == pytest.approx(watch.shift.delta, rel=1e-3)
    whole.evaluate(test)
    whole.predict(test)
    assert len(callback.auto.trace) == 3

    again, resumed, _, twin = run(tmp_path / "b")
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-24"))  # after two of three epochs
    assert resumed.auto.trace == callback.auto.trace
    assert resumed.loss.loss.beta == beta
    for value, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(value, other)


def test_unsuitable_labels_name_the_hook():
    with pytest.raises(ValueError, match="shift_in_training"):
        loss_func(COUNTS, beta=1.0)({"logits": torch.randn(2, 3)}, torch.rand(2, 3))


def test_auto_beta_without_its_loss(trainer):
    rows = data(8)
    callback = AutoBetaCallback(loss_func(COUNTS, beta=1.0))
    with pytest.raises(ValueError, match="compute_loss_func"):
        trainer(model(), rows, eval_dataset=rows, eval_strategy="epoch", callbacks=[callback]).train()
