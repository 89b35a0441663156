"""Ray: the workers of a study as tasks of a Ray cluster.

Where all nodes see the folder of the study, every task is a worker as ``longtail study --join`` is. Otherwise this
process hands out the runs, and the tasks send their run folders back.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

from longtail._checks import check_integer, check_number
from longtail._io import import_extra
from longtail.integrations.ray_tasks import RETRIES, Crew, cause_of
from longtail.study.conduct import OnRound
from longtail.study.planning import StudyPlan
from longtail.study.results import Results
from longtail.study.study import OnProgress, Study, run_studies

__all__ = ["run_on_ray"]


def run_on_ray(
    studies: Sequence[Study],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    together: int | None = None,
    on_progress: OnProgress | None = None,
    on_round: OnRound | None = None,
) -> list[Results]:
    """Run studies on a Ray cluster, and return their results.

    A task whose process or node dies is started again, up to ten times, and continues from the last checkpoint. Without
    a shared file system it starts its runs again.

    Args:
        studies: the studies.
        address: of a cluster that runs, or ``"auto"``; default: one that runs, else a new one on this machine.
        workers: how many tasks; default: as many as fit, but not more than there are runs.
        gpus_per_worker: default: 1 if the cluster has GPUs, else 0. 0.5 puts two workers on a GPU.
        together: as for :meth:`Study.run <longtail.study.Study.run>`, and so are the others.
        on_progress: see above.
        on_round: see above.

    Example:
        >>> (results,) = run_on_ray([Study.from_toml("plan.toml")], address="auto")  # doctest: +SKIP
    """
    if workers is not None:
        check_integer("workers", workers, minimum=1)
    if gpus_per_worker is not None:
        check_number("gpus_per_worker", gpus_per_worker, minimum=0)
    with _cluster(address) as ray:
        fit, gpus = _room(ray.cluster_resources(), gpus_per_worker, given=workers is not None)
        shared = _is_shared(ray, [study.plan for study in studies])
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        crew = Crew(ray, studies, options, workers, fit, together, on_progress)
        train = crew.share if shared else crew.hand_out
        return run_studies(studies, together, on_progress, on_round, train, join=shared)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine, without dashboard and usage statistics."""
    ray = import_extra("ray", "ray")
    if ray.is_initialized():  # by the user
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, include_dashboard=False, logging_level="error")
    except (ConnectionError, ValueError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"Expected a Ray cluster at {address or 'this machine'}, but got: {said}.") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(resources: dict[str, float], gpus: float | None, *, given: bool) -> tuple[int, float]:
    """How many workers fit into a cluster, and the GPUs of each; nodes may join later if the number is given."""
    there = resources.get("GPU", 0.0)
    each = min(1.0, there) if gpus is None else gpus
    fit = int(there / each) if each else int(resources.get("CPU", 0))
    if fit < 1 and not given:
        raise ValueError(
            f"Expected a Ray cluster with room for a worker with {each:g} GPUs, but it has {there:g}; change "
            "--gpus-per-worker, or give --workers if nodes join later."
        )
    return fit, each


def _is_shared(ray: Any, plans: Sequence[StudyPlan]) -> bool:
    """Whether all nodes see the folders of the studies; raises an error if a node has another version of longtail."""
    name, place = f".shared-{uuid4().hex}", import_extra("ray.util.scheduling_strategies", "ray")
    with ExitStack() as stack:
        for plan in plans:
            Path(plan.out).mkdir(parents=True, exist_ok=True)
            file = Path(plan.out) / name
            file.touch()
            stack.callback(file.unlink, missing_ok=True)
        nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        look = ray.remote(num_cpus=0)(_look)
        looks = [
            look.options(scheduling_strategy=place.NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                str(Path.cwd()), [str(Path(plan.out) / name) for plan in plans]
            )
            for node in nodes
        ]
        seen = []
        for host, ref in zip(nodes.values(), looks, strict=True):
            try:
                found, version = ray.get(ref)
            except ray.exceptions.RayError as error:
                raise ValueError(f"Expected longtail on {host}, a node of Ray, but got: {cause_of(error)}") from None
            own = metadata.version("longtail")
            if version != own:
                raise ValueError(f"Expected longtail {own} on {host}, a node of Ray, but got {version}.")
            seen.append(found)
        return all(seen)


def _look(here: str, files: Sequence[str]) -> tuple[bool, str]:
    shared = Path(here).is_dir() and all((Path(here) / file).exists() for file in files)
    return shared, metadata.version("longtail")
