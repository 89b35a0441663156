"""The tables of docs/speed.md about losses, images, ImageNet's size, evaluation and growth: one function each."""

from page_results import Content, Results, reached, share, table, wrong


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
        ways = {"plain": "ProCo, published style", "proco": "ProCo", "proco 2": "ProCo, two views", "bcl": "BCL"}
        for key, name in ways.items():
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
    return table(["images", "a second", "", "goal"], rows, *sources) + wrong(*sources) if sources else None


def _small_images(found: Content | None, where: str) -> list[list[str]]:
    if found is None:
        return []
    rate, ratio = found["images_per_second"], f"{found['ratio']:.1f} times"
    return [
        [f"32 x 32{where}, PIL DataLoader, {found['workers']} workers", f"{rate['usual']:,}", "", ""],
        [f"32 x 32{where}, resident", f"{rate['resident']:,}", ratio, f"{found['goal']:g} times"],
    ]


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
        held = full["peak_bytes"] / tenth["peak_bytes"] if tenth["peak_bytes"] else None
        rows += [
            [
                f"{int(samples):,} samples x {stream['classes']} classes to class statistics",
                f"{full['seconds']:.2f} s, {full['seconds_of_logits']:.2f} s of it for the logits; "
                f"{full['samples_per_second']:,.0f} samples/s",
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
