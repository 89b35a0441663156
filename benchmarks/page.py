"""The tables of docs/speed.md, from the results that are committed.

A table stands between ``<!-- name -->`` and ``<!-- /name -->``; under it stand the command, GPU, version and date. All
that was measured comes from the results; what was expected (``STEPS``) and the goals are written here.

    python benchmarks/page.py [--gpu h200] [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longtail.study.stats import compare

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
NOTHING = "*Not measured yet; `make bench-gpu` fills this in.*"

Content = dict[str, Any]


class Results:
    """What benchmarks left, by file name."""

    def __init__(self, folder: Path, gpu: str = "h200") -> None:
        self.folder, self.gpu = folder, gpu

    def file(self, name: str, where: str | None = None) -> Content | None:
        path = self.folder / f"{name}-{where or self.gpu}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def parts(self, name: str, where: str | None = None) -> dict[str, Content]:
        """What a file holds, each part with its own command and date."""
        found = self.file(name, where)
        return {} if found is None else found["parts"]

    def part(self, name: str, part: str) -> Content | None:
        return self.parts(name).get(part)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *sources: Content) -> str:
    """A Markdown table, the first column text and the others numbers, and where it is from."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *dict.fromkeys(source(one) for one in sources)])


def source(found: Content) -> str:
    """Where, when and how something was measured."""
    return f"`{found['command']}`; {found['device']}, torch {found['torch']}, {found['date']}."


def wrong(*parts: Content | None) -> str:
    """What the scripts said was wrong, to stand under a table."""
    said = [sentence for part in parts if part for sentence in part.get("wrong", [])]
    return "".join(f"\n\n**Wrong:** {sentence}." for sentence in said)


def reached(value: float, goal: float, *, at_most: bool = False) -> str:
    """Whether a goal is."""
    return "yes" if (value <= goal if at_most else value >= goal) else "no"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


# --- one function a table


def loss(results: Results) -> str | None:
    parts = list(results.parts("loss").values())
    if not parts:
        return None
    goal = parts[0]["goal"]
    rows = [
        [
            f"{row['rows']} x {row['classes']:,}, {row['type']}",
            f"{row['plain_ms']:.3f} ms",
            f"{row['ratio']['shifted_linear']:.3f}",
            f"{row['ratio']['module']:.3f}",
            reached(min(row["ratio"][way] for way in ("shifted_linear", "module")), goal, at_most=True),
        ]
        for part in parts
        for row in part["rows"]
        if row["mode"] == "graph"
    ]
    head = [
        "logits",
        "cross entropy",
        "`shifted_linear`, times",
        "module, times",
        f"goal {goal}, by one of them",
    ]
    return table(head, rows, *parts)


def contrastive(results: Results) -> str | None:
    parts = list(results.parts("contrastive").values())
    if not parts:
        return None
    rows = []
    for size in parts:
        for name, key in (("ProCo, published style", "plain"), ("ProCo", "proco"), ("BCL", "bcl")):
            if key not in size:
                continue
            one = size[key]
            plain = size.get("plain")
            graph, peak = one.get("graph_ms"), one["peak_bytes"]
            rows.append(
                [
                    f"{name}, {size['classes']:,} classes, {size['dim']}-d",
                    f"{one['eager_ms']:.2f} ms",
                    "" if graph is None else f"{graph:.3f} ms",
                    f"{peak / 1e6:,.0f} MB",
                    f"{plain['eager_ms'] / (graph or one['eager_ms']):.0f}" if plain and key == "proco" else "",
                    f"{plain['peak_bytes'] / peak:.0f}" if plain and key == "proco" else "",
                    _contrastive_goal(size, key, graph),
                ]
            )
    head = ["batch 256", "eager", "graph", "peak memory", "times faster (graph)", "times leaner", "goal (graph)"]
    return table(head, rows, *parts)


def _contrastive_goal(size: Content, key: str, graph: float | None) -> str:
    """The issue's goals, against the published loss as it was measured before: 231 ms, 24.4 GB."""
    if graph is None:
        return ""
    if (size["classes"], key) == (8142, "proco"):
        fast, lean = 231.0 / graph >= 40, 24.4e9 / size[key]["peak_bytes"] >= 50
        return f"40 x faster, 50 x leaner than 231 ms, 24.4 GB: {'yes' if fast and lean else 'no'}"
    goal = {(8142, "bcl"): 3.0, (100, "proco"): 1.0, (100, "bcl"): 1.0}.get((size["classes"], key))
    return "" if goal is None else f"{goal:g} ms: {reached(graph, goal, at_most=True)}"


def data(results: Results) -> str | None:
    parts, here = results.parts("data"), results.parts("data", "cpu").get("small")
    small, large = parts.get("small"), parts.get("large")
    rows = _small_images(small, "")
    for name, row in (large or {"rows": {}})["rows"].items():
        goal = row.get("goal")
        verdict = "" if goal is None else reached(row["images_per_second"], goal)
        rows.append([f"224 x 224, {name}", f"{row['images_per_second']:,}", verdict, f"{goal:,}" if goal else ""])
    rows += _small_images(here, " on two CPU cores")
    sources = [part for part in (small, large, here) if part]
    return table(["images", "a second", "", "goal"], rows, *sources) if sources else None


def _small_images(found: Content | None, where: str) -> list[list[str]]:
    if found is None:
        return []
    rate, ratio = found["images_per_second"], f"{found['ratio']:.1f} times"
    return [
        [f"32 x 32{where}, PIL DataLoader, {found['workers']} workers", f"{rate['usual']:,}", "", ""],
        [f"32 x 32{where}, resident", f"{rate['resident']:,}", ratio, f"{found['goal']:g} times"],
    ]


STEPS = (
    # What was done, what it takes as measured before (ms a step and model), and fleet.py's row.
    ("the usual loop: PIL, DataLoader, eager, fp32", 13.5, "the usual loop"),
    ("images and augmentation on the GPU, still eager", 9.0, "one, cuDNN fp32, eager"),
    ("the whole step as one CUDA graph, fp32", 4.0, "one, cuDNN fp32"),
    ("in bf16", 3.2, "one, cuDNN bf16 channels_last"),
    ("compiled", 2.5, "one, cuDNN bf16 channels_last, compiled"),
    ("our own kernels instead, one model", None, "one, Triton bf16"),
    ("twelve graphs on twelve streams, cuDNN", 1.3, "12, cuDNN bf16 channels_last"),
    ("twelve, our own kernels", 0.5, "12, Triton bf16"),
    ("the bytes that have to be moved", 0.25, None),
)


def named_parts(results: Results) -> list[Content]:
    """Those of ``fleet.py`` whose rows have names."""
    return [part for name, part in results.parts("fleet").items() if name not in ("check", "growth")]


def named_rows(results: Results) -> dict[str, Content]:
    return {name: row for part in named_parts(results) for name, row in part["rows"].items()}


def fleet(results: Results) -> str | None:
    rows = named_rows(results)
    if not rows:
        return None
    usual = rows.get("the usual loop", {}).get("ms")
    lines = []
    for words, predicted, name in STEPS:
        ms = rows.get(name, {}).get("ms") if name else None
        lines.append(
            [
                words,
                "" if predicted is None else f"{predicted:g} ms",
                "" if ms is None else f"{ms:.2f} ms",
                "" if ms is None else f"{200 * 97 * ms / 1e3:.0f} s",
                "" if ms is None or usual is None else f"{usual / ms:.1f}",
            ]
        )
    head = ["step and model", "expected", "measured", "200 epochs", "times the usual loop"]
    text = table(head, lines, *named_parts(results))
    twelve, compiled = rows.get("12, Triton bf16"), rows.get("one, cuDNN bf16 channels_last, compiled")
    goals = []
    if twelve and usual:
        ratio = usual / twelve["ms"]
        goals.append(
            f"25 times the usual loop: {reached(ratio, 25)} ({ratio:.1f}); the next mark, 40: {reached(ratio, 40)}"
        )
    if twelve and compiled:
        ratio = compiled["ms"] / twelve["ms"]
        goals.append(f"4.5 times one compiled graph: {reached(ratio, 4.5)} ({ratio:.1f})")
    return f"{text}\n\nGoals: {'; '.join(goals)}." if goals else text


OPERATIONS = {
    "forward": "convolution",
    "input": "its input's gradient",
    "weight": "its weight's gradient",
    "normalise": "BatchNorm and ReLU",
}


def tiles(results: Results) -> str | None:
    """What each kernel of a ResNet-32 takes: with the tiles that were there before, and with those that were found."""
    found = results.file("tiles")
    if found is None:
        return None
    rows = []
    places = list(OPERATIONS)
    for one in sorted(found["best"], key=lambda one: (-one["height"], places.index(one["operation"]))):
        if one["layers"] == 1:  # where a stage begins
            continue
        size = f"{one['height']} x {one['height']} x {one['written']}"
        rows.append(
            [
                f"{OPERATIONS[one['operation']]}, {size}",
                str(one["layers"]),
                f"{one['us_default']:.1f} us",
                f"{one['us_twelve']:.1f} us",
                "CUDA, halo" if one["tile"]["halo"] else "Triton",
            ]
        )
    whole = found["us_whole"]
    rows.append(["forward and backward, whole", "", f"{whole['default']:.0f} us", f"{whole['tuned']:.0f} us", ""])
    return table(["twelve at a time, a model", "layers", "before", "now", "by"], rows, found)


def same(results: Results) -> str | None:
    found = results.part("same", "same")
    if found is None:
        return None
    rows = []
    for way, values in found["recalls"].items():
        some, whole = values[: found["seeds"]], found["whole_runs"][way]
        spent = whole["seconds_a_model"]
        rows.append(
            [
                way,
                str(len(some)),
                f"{sum(some) / len(some):.2f}",
                " ".join(f"{value:.2f}" for value in some),
                str(whole["members"]),
                "" if spent is None else f"{spent:.1f} s",
            ]
        )
    head = [
        f"{found['data']}, Balanced Softmax", "seeds", "mean recall", "of each seed", "in the fleet",
        "a whole run, a model",
    ]  # fmt: skip
    text = table(head, rows, found)
    if found.get("p") is not None:
        goals = "; ".join(f"{name}: {yes.lower()}" for name, yes in found["goals"].items())
        text += f"\n\nDifference {found['difference']:+.2f} points, Welch's p = {found['p']:.2f}. Goals: {goals}."
        ours, careful = found["recalls"].values()
        if len(ours) > found["seeds"]:
            all_of_them = compare(ours, careful, paired=False)
            text += (
                f" With all {len(ours)} members of the fleet: {all_of_them.difference:+.2f} points, "
                f"p = {all_of_them.p_value:.2f}."
            )
    errors = [f"{of['error of a float32 convolution']:.0e} ({way})" for way, of in found["float32"].items()]
    text += f"\n\nErrors of a convolution that is asked for in float32: {', '.join(errors)}."
    return text + whole_runs(results, found)


def whole_runs(results: Results, found: Content) -> str:
    """What a whole run of our own kernels takes, next to what its steps would."""
    way, whole = next(iter(found["whole_runs"].items()))
    step = named_rows(results).get("12, Triton bf16")
    if whole["seconds_a_model"] is None or step is None:
        return ""
    seconds = whole["epochs"] * 97 * step["ms"] / 1e3
    return (
        f"\n\n{whole['epochs']} epochs, {way}, {whole['members']} models together: {whole['seconds_a_model']:.1f} s a "
        f"model from the first start to the last result, captures, checkpoints and last evaluations included; the "
        f"steps alone, as timed above in another run, would take {seconds:.1f} s."
    )


def imagenet(results: Results) -> str | None:
    found = results.part("imagenet", "training")
    if found is None:
        return None
    rows = []
    for name, row in found["rows"].items():
        ours = not name.startswith("a batch")
        rows.append(
            [
                name,
                f"{row['images_per_second']:,.0f}",
                f"{row['share']:.3f}",
                f"0.90: {reached(row['share'], 0.9)}" if ours else "",
                f"{row['epoch_seconds']:.1f} s",
                f"20 s: {reached(row['epoch_seconds'], 20.0, at_most=True)}" if ours else "",
            ]
        )
    head = ["from", "images/s", "share", "goal", "ImageNet-LT epoch", "goal"]
    text = table(head, rows, found)
    packing = found.get("packing")
    text += f"\n\nPacking resident files, once: {packing['images_per_second']:,.0f} images/s." if packing else ""
    return text + wrong(results.part("imagenet", "check"), found)


def evaluation(results: Results) -> str | None:
    parts = {name: results.part("evaluation", name) for name in ("stream", "balance", "fleet")}
    there = [part for part in parts.values() if part]
    if not there:
        return None
    rows: list[list[str]] = []
    if stream := parts["stream"]:
        (_, tenth), (samples, full) = stream["rows"].items()
        held = full["peak_bytes"] / tenth["peak_bytes"] if full["peak_bytes"] else None
        rows += [
            [
                f"{int(samples):,} samples x {stream['classes']} classes to class statistics",
                f"{full['seconds']:.2f} s, {full['samples_per_second']:,.0f} samples/s",
                "",
            ],
            [
                "peak memory, and of a tenth of the samples",
                "" if held is None else f"{full['peak_bytes'] / 1e6:,.0f} MB, {tenth['peak_bytes'] / 1e6:,.0f} MB",
                "" if held is None else f"constant: {reached(held, 1.01, at_most=True)}",
            ],
            ["all measures from them", f"{full['measures_seconds']:.2f} s", ""],
        ]
    if balance := parts["balance"]:
        for name, row in balance["rows"].items():
            ratio = row.get("times_hits")
            goal = "" if ratio is None else f"2 passes: {reached(ratio, 2.0, at_most=True)}"
            shown = f"{row['seconds']:.3f} s" + ("" if ratio is None else f", {ratio:.2f} passes")
            rows.append([f"ResNet-32, {balance['images']:,} images: {name}", shown, goal])
    if fleet_part := parts["fleet"]:
        for name, row in fleet_part["rows"].items():
            one, end = row["share_of_an_evaluation"], row["share_of_the_end"]
            rows.append(
                [
                    f"in a fleet of {name}: every 10 epochs, and at the end of 200",
                    f"{share(one)} + {share(end)} of training",
                    f"10 %: {reached(row['share'], 0.1, at_most=True)}",
                ]
            )
    return table(["what", "cost", "goal"], rows, *there) + wrong(*(fleet_part or {"rows": {}})["rows"].values())


def classes(results: Results) -> str | None:
    found = results.part("growth", "classes")
    if found is None:
        return None
    numbers = list(dict.fromkeys(row["classes"] for row in found["rows"]))
    names = list(dict.fromkeys(row["name"] for row in found["rows"]))
    cells = {(row["name"], row["classes"]): row for row in found["rows"]}

    def cell(row: Content | None) -> str:
        if row is None:
            return ""
        memory = row["peak_bytes"]
        return f"{row['ms']:.3f} ms" + ("" if memory is None else f", {memory / 1e6:,.1f} MB")

    rows = [[name, *(cell(cells.get((name, number))) for number in numbers)] for name in names]
    return table([f"batch {found['batch']}, {found['dim']}-d", *(f"{number:,}" for number in numbers)], rows, found)


def members(results: Results) -> str | None:
    found = results.part("fleet", "growth")
    if found is None:
        return None
    rows = []
    for row in found["rows"]:
        held = row["gigabytes"]
        cells = [f"{row['ms']:.3f} ms", f"{97 * row['ms'] / 1e3:.3f} s", "" if held is None else f"{held:.1f} GB"]
        rows.append([str(row["members"]), *cells])
    head = ["members", "a step and model", "an epoch and model", f"memory of all ({found['memory']})"]
    return table(head, rows, found)


def samples(results: Results) -> str | None:
    found = results.part("growth", "samples")
    if found is None:
        return None
    rows = []
    for row in found["rows"]:
        memory = row["peak_bytes"]
        held = "" if memory is None else f"{memory / 1e6:,.0f} MB"
        rows.append([f"{row['samples']:,}", f"{row['seconds']:.3f} s", held])
    return table([f"samples, {found['classes']} classes, {found['features']}-d", "time", "memory"], rows, found)


def figure(_: Results) -> str | None:
    there = PAGE.parent / "images" / "growth.png"
    return "![Time and memory against classes, members and samples](images/growth.png)" if there.exists() else None


TABLES: dict[str, Callable[[Results], str | None]] = {
    "loss": loss,
    "contrastive": contrastive,
    "data": data,
    "fleet": fleet,
    "tiles": tiles,
    "same": same,
    "imagenet": imagenet,
    "evaluation": evaluation,
    "classes": classes,
    "members": members,
    "samples": samples,
    "figure": figure,
}


def filled(text: str, results: Results) -> str:
    """The page with its tables as they should be."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"Expected one {begin.strip()} and one {end} in {PAGE.name}.")
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}{make(results) or NOTHING}\n{end}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200", help="whose results")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is not up to date")
    given = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text, Results(HERE / "results", given.gpu))
    if given.check and new != text:
        sys.exit(f"{PAGE.name} is not up to date: python benchmarks/page.py")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
