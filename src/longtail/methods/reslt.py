"""ResLT: one branch for all classes, one for medium and tail, one for tail classes (Cui et al., 2022)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from longtail.losses import branches_from_counts, branches_from_groups, reslt_terms
from longtail.methods.base import Method, Stage, Task
from longtail.methods.objective import Objective, Sums
from longtail.methods.params import param
from longtail.models import HeadSpec, Outputs


class ResLT(Objective):
    """The losses of the branches, and the loss of their sum.

    Args:
        sees: which classes each branch sees, bool ``(branches, C)``.
        alpha: weight of the branches; the cross entropy of their sum has the weight 1 - alpha.
        label_smoothing: as in ``F.cross_entropy``.
    """

    sees: Tensor

    def __init__(self, sees: Tensor, alpha: float, label_smoothing: float = 0.0) -> None:
        super().__init__({"branches": alpha, "sum": 1 - alpha})
        self.register_buffer("sees", sees, persistent=False)
        self.label_smoothing = label_smoothing

    def denominators(self, target: Tensor) -> Sums:
        """How many samples the branches see in total, and the number of samples."""
        seen = self.sees[:, target].sum()
        return {"branches": seen, "sum": seen.new_full((), len(target))}

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The losses of the branches and of their sum."""
        terms = reslt_terms(
            outputs.extra["branches"], target, self.sees, label_smoothing=self.label_smoothing, check_labels=False
        )
        return {"branches": terms.branch_sum, "sum": terms.fusion_sum}


@dataclass(frozen=True)
class ResLTParams:
    """Parameters of ResLT."""

    alpha: float = param(0.99, "weight of the branches beside their sum", at_least=0, at_most=1)
    branches: int = param(3, "number of branches: 3, or 2 as on iNaturalist", at_least=2, at_most=3)
    medium_from: int | None = param(
        None, "number of most frequent classes that the second branch leaves out; default: the head classes", at_least=0
    )
    tail_from: int | None = param(
        None, "number of most frequent classes that the third branch leaves out; default: all but the tail", at_least=0
    )


def _objective(task: Task) -> Objective:
    params, classes = task.params, len(task.counts)
    sees = branches_from_groups(task.groups)
    if params.tail_from is not None and params.medium_from is None:
        raise ValueError(f"Expected `medium_from` with `tail_from` = {params.tail_from}, but got none.")
    if params.medium_from is not None:
        starts = [params.medium_from, *([params.tail_from] if params.tail_from is not None else [])]
        sees = branches_from_counts(task.counts, *(classes - start for start in starts))
    if len(sees) < params.branches:
        raise ValueError(f"Expected classes for `branches` = {params.branches} branches, but got {len(sees)}.")
    return ResLT(sees[: params.branches], params.alpha, task.label_smoothing)


def _head(params: Any) -> HeadSpec:
    return HeadSpec("reslt", {"branches": params.branches})


RESLT = Method(
    "reslt",
    "ResLT",
    "one branch for all, one for medium and tail, one for tail classes, summed",
    "Cui et al., TPAMI 2022",
    (Stage(_objective, _head),),
    ResLTParams,
)
