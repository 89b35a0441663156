"""Write the tables of docs/speed.md from the committed results.

Each table is between ``<!-- name -->`` and ``<!-- /name -->``, with the command, GPU, torch version and date below it.
All numbers come from ``benchmarks/results``.

    python benchmarks/page.py [--gpu h200] [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longtail.study.stats import summarise

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
NOT_MEASURED = "*Not measured yet.*"
STEPS = 97  # per epoch of CIFAR-10-LT

Content = dict[str, Any]


class Results:
    """The result files of one GPU."""

    def __init__(self, folder: Path, gpu: str = "h200") -> None:
        self.folder, self.gpu = folder, gpu

    def parts(self, name: str, gpu: str | None = None) -> dict[str, Content]:
        """The parts of a file, each with its own command and date."""
        path = self.folder / f"{name}-{gpu or self.gpu}.json"
        return json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}

    def part(self, name: str, part: str) -> Content | None:
        return self.parts(name).get(part)

    def steps(self) -> tuple[list[Content], dict[str, Content]]:
        """The parts of ``fleet.py`` with named rows, and these rows."""
        parts = [part for name, part in self.parts("fleet").items() if name not in ("check", "growth")]
        return parts, {name: row for part in parts for name, row in part["rows"].items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *sources: Content) -> str:
    """A Markdown table (text in the first column, numbers in the others) and where it comes from."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    origin = [f"`{one['command']}`; {one['device']}, torch {one['torch']}, {one['date']}." for one in sources]
    return "\n".join([*lines, "", *dict.fromkeys(origin)])


def problems(*parts: Content | None) -> str:
    """The problems that the scripts found, as paragraphs below a table."""
    found = [sentence for part in parts if part for sentence in part.get("wrong", [])]
    return "".join(f"\n\n**Wrong:** {sentence}." for sentence in found)


def loss(results: Results) -> str | None:
    parts = list(results.parts("loss").values())
    if not parts:
        return None
    ways = ("shifted_linear", "module")
    rows = []
    for part in parts:
        modes = {mode: [row for row in part["rows"] if row["mode"] == mode] for mode in ("graph", "eager")}
        for graph, eager in zip(modes["graph"], modes["eager"], strict=True):
            cells = [f"{graph['rows']} x {graph['classes']:,}, {graph['type']}"]
            for row in (graph, eager):
                cells += [f"{row['plain_ms']:.3f} ms", *(f"{row['ratio'][way]:.3f}" for way in ways)]
            rows.append(cells)
    graph, eager = (
        [f"cross entropy, {mode}", f"`shifted_linear`, {mode}", f"module, {mode}"] for mode in ("CUDA graph", "eager")
    )
    return table(["logits", *graph, *eager], rows, *parts)


def contrastive(results: Results) -> str | None:
    parts = list(results.parts("contrastive").values())
    if not parts:
        return None
    rows = []
    ways = {"plain": "ProCo, published style", "proco": "ProCo", "proco 2": "ProCo, two views", "bcl": "BCL"}
    for size in parts:
        plain = size.get("plain")
        for key, name in ways.items():
            if key not in size:
                continue
            one = size[key]
            graph, peak = one.get("graph_ms"), one["peak_bytes"]
            compared = plain and key == "proco"
            rows.append(
                [
                    f"{name}, {size['classes']:,} classes, {size['dim']}-d",
                    f"{one['eager_ms']:.2f} ms",
                    "" if graph is None else f"{graph:.3f} ms",
                    f"{peak / 1e6:,.0f} MB",
                    f"{plain['eager_ms'] / (graph or one['eager_ms']):.0f}" if compared else "",
                    f"{plain['peak_bytes'] / peak:.0f}" if compared else "",
                ]
            )
    head = ["batch 256", "eager", "CUDA graph", "peak memory", "times faster (graph)", "times less memory"]
    return table(head, rows, *parts)


def data(results: Results) -> str | None:
    parts, cpu = results.parts("data"), results.parts("data", "cpu").get("small")
    small, large = parts.get("small"), parts.get("large")
    rows = small_images(small, "")
    for name, row in (large or {"rows": {}})["rows"].items():
        rows.append([f"224 x 224, {name}", f"{row['images_per_second']:,}", ""])
    rows += small_images(cpu, " on two CPU cores")
    sources = [part for part in (small, large, cpu) if part]
    head = ["images", "images/s", "times the PIL loader"]
    return table(head, rows, *sources) + problems(*sources) if sources else None


def small_images(found: Content | None, where: str) -> list[list[str]]:
    if found is None:
        return []
    rate = found["images_per_second"]
    return [
        [f"32 x 32{where}, PIL DataLoader, {found['workers']} workers", f"{rate['usual']:,}", ""],
        [f"32 x 32{where}, resident", f"{rate['resident']:,}", f"{found['ratio']:.1f}"],
    ]


def imagenet(results: Results) -> str | None:
    found = results.part("imagenet", "training")
    if found is None:
        return None
    rows = [
        [name, f"{row['images_per_second']:,.0f}", f"{row['share']:.3f}", f"{row['epoch_seconds']:.1f} s"]
        for name, row in found["rows"].items()
    ]
    text = table(["source", "images/s", "share", "ImageNet-LT epoch"], rows, found)
    return text + problems(results.part("imagenet", "check"), found)


FLEET_ROWS = {
    "the usual loop": "the usual loop: PIL, DataLoader, eager, fp32",
    "one, cuDNN fp32, eager": "images and augmentation on the GPU, still eager",
    "one, cuDNN fp32": "the whole step as one CUDA graph, fp32",
    "one, cuDNN bf16 channels_last": "in bf16",
    "one, cuDNN bf16 channels_last, compiled": "compiled",
    "one, Triton bf16": "our kernels instead, one model",
    "12, cuDNN bf16 channels_last, not kept in step": "twelve graphs on twelve streams, cuDNN",
    "12, Triton bf16, not kept in step": "twelve, our kernels",
    "12, Triton bf16": "twelve, our kernels, streams kept in step",
}


def fleet(results: Results) -> str | None:
    parts, rows = results.steps()
    if not rows:
        return None
    usual = rows.get("the usual loop", {}).get("ms")
    lines = []
    for name, words in FLEET_ROWS.items():
        ms = rows.get(name, {}).get("ms")
        measured = ["", ""] if ms is None else [f"{ms:.2f} ms", f"{200 * STEPS * ms / 1e3:.0f} s"]
        lines.append([words, *measured, "" if ms is None or usual is None else f"{usual / ms:.1f}"])
    return table(["training", "per step and model", "200 epochs", "times faster than the usual loop"], lines, *parts)


def same(results: Results) -> str | None:
    found = results.part("same", "same")
    if found is None:
        return None
    rows = []
    for way, values in found["recalls"].items():
        spent = found["whole_runs"][way]["seconds_a_model"]
        each = " ".join(f"{value:.2f}" for value in values)
        rows.append([way, str(len(values)), str(summarise(values)), each, "" if spent is None else f"{spent:.1f} s"])
    head = [f"{found['data']}, Balanced Softmax", "seeds", "recall", "recall of each seed", "whole run, per model"]
    text = table(head, rows, found) + "\n\n"
    if found.get("p") is not None:
        text += f"Difference {found['difference']:+.2f} points, Welch's p = {found['p']:.2f}. "
    errors = [f"{of['error of a float32 convolution']:.0e} ({way})" for way, of in found["float32"].items()]
    text += f"Relative error of a float32 convolution with these settings: {', '.join(errors)}."
    return text + whole_runs(results, found)


def whole_runs(results: Results, found: Content) -> str:
    """The time of a whole run with our kernels beside the time of its steps."""
    way, whole = next(iter(found["whole_runs"].items()))
    names, (_, rows) = ("12, Triton bf16", "the usual loop"), results.steps()
    spent = whole["seconds_a_model"]
    if spent is None or not set(names) <= set(rows):
        return ""
    ours, usual = (whole["epochs"] * STEPS * rows[name]["ms"] / 1e3 for name in names)
    return (
        f"\n\n{whole['epochs']} epochs, {way}, {whole['members']} models together: {spent:.1f} s per model from the "
        f"start to the last result, including captures, checkpoints and the last evaluations. The steps alone, as "
        f"timed above in another run, take {ours:.1f} s. The steps of the usual loop take {usual:.0f} s, "
        f"{usual / spent:.0f} times as long as our whole run."
    )


def evaluation(results: Results) -> str | None:
    parts = results.parts("evaluation")
    rows: list[list[str]] = []
    if stream := parts.get("stream"):
        (_, tenth), (samples, full) = stream["rows"].items()
        peaks = full["peak_bytes"], tenth["peak_bytes"]
        rows += [
            [
                f"{int(samples):,} samples x {stream['classes']} classes to class statistics",
                f"{full['seconds']:.2f} s, of which {full['seconds_of_logits']:.2f} s for the logits; "
                f"{full['samples_per_second']:,.0f} samples/s",
            ],
            [
                "peak memory for all samples, and for a tenth",
                ", ".join(f"{peak / 1e6:,.0f} MB" for peak in peaks) if all(peaks) else "",
            ],
            ["all measures from class statistics", f"{full['measures_seconds']:.2f} s"],
        ]
    if balance := parts.get("balance"):
        for name, row in balance["rows"].items():
            ratio = row.get("times_hits")
            passes = "" if ratio is None else f", {ratio:.2f} passes"
            rows.append([f"ResNet-32, {balance['images']:,} images: {name}", f"{row['seconds']:.3f} s{passes}"])
    in_fleet = parts.get("fleet", {"rows": {}})["rows"]
    for name, row in in_fleet.items():
        one, end = (f"{100 * row[key]:.1f} %" for key in ("share_of_an_evaluation", "share_of_the_end"))
        rows.append([f"fleet of {name}: every 10 epochs, and at the end of 200", f"{one} + {end} of training"])
    used = [parts[name] for name in ("stream", "balance", "fleet") if name in parts]
    return table(["evaluation", "cost"], rows, *used) + problems(*in_fleet.values()) if used else None


def classes(results: Results) -> str | None:
    found = results.part("growth", "classes")
    if found is None:
        return None
    numbers = list(dict.fromkeys(row["classes"] for row in found["rows"]))
    cells: dict[str, dict[int, str]] = {}
    for row in found["rows"]:
        memory = "" if row["peak_bytes"] is None else f", {row['peak_bytes'] / 1e6:,.1f} MB"
        cells.setdefault(row["name"], {})[row["classes"]] = f"{row['ms']:.3f} ms{memory}"
    rows = [[name, *(of.get(number, "") for number in numbers)] for name, of in cells.items()]
    head = [f"classes (batch {found['batch']}, {found['dim']}-d)", *(f"{number:,}" for number in numbers)]
    return table(head, rows, found)


def members(results: Results) -> str | None:
    found = results.part("fleet", "growth")
    if found is None:
        return None
    rows = found["rows"]
    memory = ["" if row["gigabytes"] is None else f"{row['gigabytes']:.1f} GB" for row in rows]
    lines = [
        ["step, per model", *(f"{row['ms']:.3f} ms" for row in rows)],
        ["epoch, per model", *(f"{STEPS * row['ms'] / 1e3:.3f} s" for row in rows)],
        [f"memory of all ({found['memory']})", *memory],
    ]
    return table(["models in the fleet", *(str(row["members"]) for row in rows)], lines, found)


def own_data(results: Results) -> str | None:
    """Rows of the CPU, and of the GPU if there are some."""
    rows, sources = [], []
    for where in dict.fromkeys(("cpu", results.gpu)):
        for part in results.parts("own-data", where).values():
            sources.append(part)
            for name, row in part["rows"].items():
                what = f"{name}, {part['images']:,} images, {where}"
                rate = f"{row['images_per_second']:,}" if "images_per_second" in row else ""
                used = f"{row['images_per_processor_second']:,}" if "images_per_processor_second" in row else ""
                seconds = f"{row['seconds']:.1f} s" if "seconds" in row else f"{row['ms']:.2f} ms per step"
                of_processor = f"{row['processor_seconds']:.1f} s" if "processor_seconds" in row else ""
                rows.append([what, seconds, of_processor, rate, used])
    head = ["own images", "by the clock", "processor time", "images/s", "images per second of processor time"]
    return table(head, rows, *sources) if rows else None


TABLES: dict[str, Callable[[Results], str | None]] = {
    make.__name__: make
    for make in (loss, contrastive, data, own_data, imagenet, fleet, same, evaluation, classes, members)
}


def filled(text: str, results: Results) -> str:
    """The page with up-to-date tables."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"Expected one {begin.strip()} and one {end} in {PAGE.name}.")
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}{make(results) or NOT_MEASURED}\n{end}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200", help="the GPU whose results are shown")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    given = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text, Results(HERE / "results", given.gpu))
    if given.check and new != text:
        sys.exit(f"{PAGE.name} is not up to date: run python benchmarks/page.py")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
