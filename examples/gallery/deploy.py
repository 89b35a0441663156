"""Export a model and run it without longtail.

This example shows how to train a model, export it to ONNX and `torch.export`, run both files with other programs, and
give an export the class frequencies of the place where it is used (`prior=`). Needs `longtail[onnx]`. The data are the
digits of scikit-learn with a long tail: 124 training images of 0, two of 9.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import onnxruntime
import torch

import longtail
from longtail.data import load
from longtail.integrations.export import export
from longtail.train import defaults, train

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Train and export
#
# The folder of an export has the model, its preprocessing and a model card. `export` compares the logits with those of
# the run and keeps the folder only if they agree. On the command line: `longtail export RUN --to onnx --out FOLDER`.

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
(run,) = train(defaults("digits-lt", "cbs").changed(beta=1.0, device="cpu"), folder / "run")
export(run.path, "torch.export", folder / "program")
export(run.path, "onnx", folder / "onnx")
export(run.path, "onnx", folder / "prior", prior="train")

# ## Run it elsewhere
#
# Neither runtime needs longtail. Its transforms prepare the images here; `preprocessing.json` describes them.

data, model = load("digits-lt"), longtail.load(run.path)
images, labels, counts = model.transforms(data.test.images.pixels), data.test.labels, data.train.labels.bincount()
with torch.inference_mode():
    logits = {"run": model(images)}
    logits["torch.export"] = torch.export.load(folder / "program" / "model.pt2").module()(images)
for name in ("onnx", "prior"):
    session = onnxruntime.InferenceSession(folder / name / "model.onnx", providers=["CPUExecutionProvider"])
    logits[name] = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])
for name in ("torch.export", "onnx"):
    print(f"{name}: largest difference of a logit {(logits[name] - logits['run']).abs().max():.1e}")

# ## Another class prior
#
# The run treats all classes as equally frequent, as in the test data. With `prior="train"`, the frequencies of the
# training data are part of the exported model. The accuracy that is printed weights the recall of each class by these
# frequencies. The prior does not always raise it: with 15 epochs instead of 40 it lowered it.

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for place, (name, label) in enumerate({"onnx": "export(run)", "prior": 'export(run, prior="train")'}.items()):
    right = logits[name].argmax(1) == labels
    recalls = torch.stack([100 * right[labels == c].float().mean() for c in range(10)])
    there = (recalls * counts).sum() / counts.sum()
    print(f"{label}: recall {recalls.mean():.1f} %, accuracy with the frequencies of the training data {there:.1f} %")
    axes.bar(torch.arange(10) + 0.4 * place - 0.2, recalls, 0.38, label=label, color=("#1f6feb", "#b8bec6")[place])
axes.set_xticks(range(10), [f"{c}\n{n}" for c, n in enumerate(counts.tolist())])
axes.set(xlabel="digit, and its training images", ylabel="recall on test images (%)", ylim=(0, 105))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "deploy.png", dpi=150)
