"""The log of a run in TensorBoard and MLflow.

This example shows how to turn on loggers, where their files are, and how to read the numbers back in Python. Nothing
is sent anywhere. Needs `longtail[tensorboard,mlflow]`; `wandb=True` writes an offline run of Weights & Biases in the
same way. The data are the digits of scikit-learn with a long tail: 124 training images of 0, two of 9.
"""

import argparse
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from longtail.train import defaults, train

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## A run with two loggers
#
# They are settings of a recipe, and flags of the command line: `longtail train --tensorboard --mlflow`. The recall on
# test images after every epoch (`evaluate_every=1`) is for the figure; choose an epoch on validation images.

temporary = tempfile.TemporaryDirectory()
recipe = defaults("digits-lt", "cbs").changed(epochs=15, beta=1.0, evaluate_every=1, device="cpu")
(run,) = train(recipe.changed(tensorboard=True, mlflow=True), Path(temporary.name) / "run")

# ## Read TensorBoard
#
# `tensorboard --logdir RUN/tensorboard` shows the same in a browser.

events = EventAccumulator(str(run.path / "tensorboard"))
events.Reload()
groups = ["head", "medium", "tail"]
board = {group: {one.step: one.value for one in events.Scalars(f"recall/test/{group}")} for group in groups}

# ## Read MLflow
#
# `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlflow` shows it. The recipe is there too, as the
# parameters of the run.

os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
from mlflow import MlflowClient  # noqa: E402 - the variables come first

client = MlflowClient(tracking_uri=(run.path / "mlflow").as_uri())
(found,) = client.search_runs([client.get_experiment_by_name("longtail").experiment_id])
flow = {group: client.get_metric_history(found.info.run_id, f"recall/test/{group}") for group in groups}
print(f"MLflow: {found.data.params['data']}, beta {found.data.params['beta']}, {found.info.status.lower()}")

# ## Recall by group over epochs
#
# TensorBoard stores float32, so that the two agree to about seven digits.

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for group, colour in zip(groups, ("#b8bec6", "#8250df", "#1f6feb"), strict=True):
    difference = max(abs(board[group][one.step] - one.value) for one in flow[group])
    print(f"{group}: {len(flow[group])} epochs, last recall {100 * flow[group][-1].value:.1f} %,", end=" ")
    print(f"largest difference of the two logs {difference:.0e}")
    axes.plot(board[group].keys(), [100 * value for value in board[group].values()], color=colour, label=group)
    axes.plot([one.step for one in flow[group]], [100 * one.value for one in flow[group]], "o", color=colour, ms=4)
axes.set(xlabel="epoch (lines: TensorBoard, points: MLflow)", ylabel="recall on test images (%)", ylim=(0, 105))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=3, frameon=False)
figure.savefig(out / "loggers.png", dpi=150)
