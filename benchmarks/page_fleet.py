"""The tables of docs/speed.md about fleets: steps and their gains, tiles, whole runs, numbers of members."""

from page_results import Content, Results, reached, table

from longtail.study.stats import summarise

STEPS = (
    # What was done, what it takes as measured before (ms a step and model), and fleet.py's row.
    ("the usual loop: PIL, DataLoader, eager, fp32", 13.5, "the usual loop"),
    ("images and augmentation on the GPU, still eager", 9.0, "one, cuDNN fp32, eager"),
    ("the whole step as one CUDA graph, fp32", 4.0, "one, cuDNN fp32"),
    ("in bf16", 3.2, "one, cuDNN bf16 channels_last"),
    ("compiled", 2.5, "one, cuDNN bf16 channels_last, compiled"),
    ("our own kernels instead, one model", None, "one, Triton bf16"),
    ("twelve graphs on twelve streams, cuDNN", 1.3, "12, cuDNN bf16 channels_last, not kept in step"),
    ("twelve, our own kernels", 0.5, "12, Triton bf16, not kept in step"),
    ("kept in step", None, "12, Triton bf16"),
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
    if not goals:
        return text
    text += f"\n\nGoals: {'; '.join(goals)}."
    if twelve:
        of = {row: predicted / twelve["ms"] for _, predicted, row in STEPS if predicted is not None}
        loop, graph = of["the usual loop"], of["one, cuDNN bf16 channels_last, compiled"]
        text += f" Against both as they were expected, so that no slower one helps: {loop:.1f} and {graph:.1f} times."
    return text


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
        if one["launches"] == 1:  # where a stage begins
            continue
        size = f"{one['height']} x {one['height']} x {one['written']}"
        rows.append(
            [
                f"{OPERATIONS[one['operation']]}, {size}",
                str(one["launches"]),
                f"{one['us_default']:.1f} us",
                f"{one['us_twelve']:.1f} us",
                "CUDA, halo" if one["tile"]["halo"] else "Triton",
            ]
        )
    whole = found["us_whole"]
    rows.append(["forward and backward, whole", "", f"{whole['default']:.0f} us", f"{whole['tuned']:.0f} us", ""])
    return table(["twelve at a time, a model", "launches", "before", "now", "by"], rows, found)


def same(results: Results) -> str | None:
    found = results.part("same", "same")
    if found is None:
        return None
    rows = []
    for way, values in found["recalls"].items():
        spent = found["whole_runs"][way]["seconds_a_model"]
        rows.append(
            [
                way,
                str(len(values)),
                str(summarise(values)),
                " ".join(f"{value:.2f}" for value in values),
                "" if spent is None else f"{spent:.1f} s",
            ]
        )
    head = [f"{found['data']}, Balanced Softmax", "seeds", "recall", "of each seed", "a whole run, a model"]
    text = table(head, rows, found)
    if found.get("p") is not None:
        goals = "; ".join(f"{name}: {yes.lower()}" for name, yes in found["goals"].items())
        text += f"\n\nDifference {found['difference']:+.2f} points, Welch's p = {found['p']:.2f}. Goals: {goals}."
    errors = [f"{of['error of a float32 convolution']:.0e} ({way})" for way, of in found["float32"].items()]
    text += f"\n\nErrors of a convolution that is asked for in float32: {', '.join(errors)}."
    return text + whole_runs(results, found)


def whole_runs(results: Results, found: Content) -> str:
    """What a whole run of our own kernels takes, next to what its steps would."""
    way, whole = next(iter(found["whole_runs"].items()))
    rows = named_rows(results)
    if whole["seconds_a_model"] is None or not {"12, Triton bf16", "the usual loop"} <= set(rows):
        return ""
    ours, usual = (whole["epochs"] * 97 * rows[name]["ms"] / 1e3 for name in ("12, Triton bf16", "the usual loop"))
    return (
        f"\n\n{whole['epochs']} epochs, {way}, {whole['members']} models together: {whole['seconds_a_model']:.1f} s a "
        f"model from the first start to the last result, captures, checkpoints and last evaluations included; the "
        f"steps alone, as timed above in another run, would take {ours:.1f} s. The usual loop's steps would take "
        f"{usual:.0f} s, {usual / whole['seconds_a_model']:.0f} times as long as a whole run of ours."
    )


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
