"""The paper's figures, drawn from the authors' numbers."""

from scipy import stats

from reproduction.figures import paper_drawings
from reproduction.paper import five_runs, imbalance_level


def test_the_papers_figures_show_its_numbers():
    drawings = {one.name: one for one in paper_drawings()}
    assert {"paper-imbalance-level", "paper-boxes-cifar", "paper-gradients", "paper-beta-places"} <= set(drawings)
    level = drawings["paper-imbalance-level"].figure.axes[0]
    heights = [bar.get_height() for bars in level.containers for bar in bars]
    assert imbalance_level("C10-LT100")["cbs"] in heights
    runs = five_runs()["C10-LT10"]
    p = stats.ttest_ind(runs["cbs"], runs["balanced-softmax"], equal_var=False, alternative="greater").pvalue
    title = drawings["paper-boxes-cifar"].figure.axes[0].get_title()
    assert title.startswith(f"C10-LT10\np = {p:.2g} (one-sided)")
