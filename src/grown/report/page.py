"""`report.html`: one run as one self-contained page; several runs are compared in `page_compare.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from grown.bench import paper as the_paper
from grown.io import files
from grown.report import page_findings as findings
from grown.report import page_run, plots
from grown.report.page_html import NONE, figure, folded, number, page, section, table, text
from grown.report.page_run import Run, Structure
from grown.report.tables import decided_on, protocol_note

FILE = "report.html"
NO_PLOTS = "The plots need matplotlib: <code>pip install 'grown[plots]'</code>, then <code>grown report RUN</code>."
TRAINING_NOTE = (
    "Lines are of the network in training; what decides is measured at the end of a stage, on the extracted network. "
    "Trainings that only measure a target are left out."
)
POINTS = 50  # of a line, for one training


def write(folder: Path) -> Path:
    """Make the page of the run in a folder."""
    files.write(folder / FILE, make(page_run.read(folder)).encode())
    return folder / FILE


def make(run: Run) -> str:
    """The page of one run."""
    result = run.result
    title = f"{result['benchmark']}: {result['method']}, {result['label']}, seed {result['seed']}"
    return page(
        text(title),
        _summary(run),
        _accuracy(run),
        _targets(run),
        _sizes(run),
        _structure(run),
        _training(run),
        _bytes(run),
        _times(run),
        settings(run),
    )


def plot(make: Callable[..., str], name: str, about: str, *details: Any) -> str | None:
    """A plot, where there is matplotlib; `about` is what it says to who cannot see it."""
    return make(name, about, *details) if plots.available() else None


def _summary(run: Run) -> str:
    result = run.result
    transfer = result.get("forward_transfer")
    entries = [
        ("average test accuracy", number("average_accuracy", result["average_accuracy"], ".2f", "%")),
        ("forgetting", number("forgetting", result["forgetting"], "g", " points")),
        ("size in kernels", number("size_x", result["size_x"], ".3f", "x")),
        ("size with everything", number("bytes_x", result["bytes_x"], ".3f", "x")),
        ("file", number("bytes", result["bytes"]["total"], ",", " bytes")),
    ]
    if transfer is not None:
        entries.append(("against Scratch", number("forward_transfer", transfer, "+.2f", " points")))
    about = (
        f"{len(run.tasks)} tasks of {result['benchmark']}, learned by {result['method']} on {result['backbone']}, "
        f"recipe {result['recipe']}, protocol {result['protocol']}. 1x is {result['base_parameters']:,} weights."
    )
    note = protocol_note(result)
    warning = f'<p class="warn">{text(note)}.</p>' if note is not None else ""
    missing = "" if plots.available() else f'<p class="warn">{NO_PLOTS}</p>'
    key = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in entries)
    return f'<p>{text(about)}</p>{warning}{missing}<dl class="key">{key}</dl>'


def _accuracy(run: Run) -> str:
    matrix, names = run.result["accuracy_matrix"], run.names
    finding = findings.memory(run)
    numbers = [str(place + 1) for place in range(len(names))]
    form = ".1f" if len(names) <= 8 else ".0f"
    texts = [[f"{value:{form}}" for value in row] for row in matrix] if len(names) <= 20 else None
    labels = ([f"{n} {name}" for n, name in zip(numbers, names, strict=True)], numbers)
    drawn = plot(plots.heat, "matrix", finding, matrix, labels, ("after learning", "task", "test accuracy, %"), texts)
    rows = [
        [text(name), *(number("accuracy", value, ".1f") for value in row)]
        for name, row in zip(names, matrix, strict=True)
    ]
    full = table(["after", *(text(name) for name in names)], rows, name="accuracy-matrix")
    return section(
        "accuracy", "What it remembers", figures(figure(text(finding), drawn)), folded("the numbers (%)", full)
    )


def _targets(run: Run) -> str:
    rows, decided = run.tasks, decided_on(run.result)
    head = ["task", "classes", "target", decided, "test", "target is"]
    cells = [
        [
            text(row["name"]),
            str(len(row["classes"])),
            number("target", row["target"], ".1f"),
            number("val", row["val"], ".1f"),
            number("test", row["test"], ".1f"),
            text(findings.verdict(row, run.margin)),
        ]
        for row in rows
    ]
    drawn = why = ""
    if any(row["target"] is not None for row in rows):
        finding = findings.targets(run)
        points = [(row["name"], row["target"], findings.reused(row), row["val"]) for row in rows]
        picture = plot(plots.targets, "targets", finding, points, decided)
        drawn = figures(figure(text(finding), picture), _gains(run))
        reasons = [[text(r["name"]), "yes" if r["grew"] else "no", text(findings.why(r, run))] for r in rows]
        why = table(["task", "grew", "why"], reasons, (1, 2), "why")
    classes = [[text(row["name"]), text(", ".join(row["classes"]))] for row in rows]
    names = folded("the classes", table(["task", "classes"], classes, (1,)))
    return section("targets", "Targets, and why it grew", drawn, table(head, cells, (5,), "tasks"), why, names)


def _gains(run: Run) -> str:
    rows = run.tasks
    grown = [
        (row["name"], row["size_x"] - before["size_x"], findings.gain(row))
        for before, row in pairwise(rows)
        if findings.reused(row) is not None
    ]
    if len(rows) == 1:
        return ""
    unknown = sum(findings.untried(row) for row in rows[1:])
    still = len(rows) - 1 - len(grown) - unknown
    finding = findings.growth(grown, unknown)
    return figure(text(finding), plot(plots.gains, "gains", finding, grown, still) if grown else None)


def budget_of(run: Run) -> float | None:
    """The size that a run was allowed, where its method has one."""
    found = run.config.get("max_size") if run.result["method"] == "grown" else None
    return float(found) if found is not None else None


def _sizes(run: Run) -> str:
    result, rows = run.result, run.tasks
    budget = budget_of(run)
    paper = the_paper.row(result["benchmark"], "grown") if result["method"] == "grown" else None
    finding = findings.size(run, budget, paper)
    lines = [
        ("kernels (as the paper counts)", [row["size_x"] for row in rows]),
        ("everything in the file", [row["bytes_x"] for row in rows]),
    ]
    note = f"The paper's curve: {text(paper.source)}, over its own 1x." if paper else ""
    drawn = plot(plots.sizes, "sizes", finding, lines, budget, paper.sizes if paper else None)
    head = ["after", "kernels", "everything", "bytes", *(["the paper's"] if paper else [])]
    cells = [
        [
            text(row["name"]),
            number("task_size_x", row["size_x"], ".3f", "x"),
            number("task_bytes_x", row["bytes_x"], ".3f", "x"),
            number("task_bytes", row["bytes"], ","),
            *([f"{paper.sizes[place]:g}x" if place < len(paper.sizes) else NONE] if paper else []),
        ]
        for place, row in enumerate(rows)
    ]
    shown = figures(figure(text(finding), drawn, note))
    return section("size", "What it costs", shown, folded("the numbers", table(head, cells, name="sizes")))


def _structure(run: Run) -> str:
    found = run.structure
    if found is None:
        return ""
    names, numbers = found.tasks, [str(place + 1) for place in range(len(found.tasks))]
    labels = [f"{n} {name}" for n, name in zip(numbers, names, strict=True)]
    reused, grew = findings.reuse(found), findings.layers(found)
    own = [row[-1] for row in found.used]
    # Of each earlier task's kernels, the share that a task picked; a task's own kernels are all its own.
    shares = [[100.0 * count / max(1, own[j]) for j, count in enumerate(row[:-1])] for row in found.used[1:]]
    texts = [[f"{share:.0f}" for share in row] for row in shares] if len(names) <= 20 else None
    words = ("task", "earlier task", "% of its kernels that are picked")
    drawings = []
    if shares:
        picked = plot(plots.heat, "picked", reused, shares, (labels[1:], numbers[:-1]), words, texts, (0.0, 100.0))
        drawings.append(figure(text(reused), picked))
    counts = [[row[layer] for row in found.owned] for layer in range(len(found.layers))]
    few = len(names) <= 10 and max(map(max, counts)) < 10_000
    inside = [[str(count) for count in row] for row in counts] if few else None
    words = ("layer", "task", "kernels that it trained")
    drawings.append(
        figure(text(grew), plot(plots.heat, "layers", grew, counts, (found.layers, numbers), words, inside))
    )
    return section(
        "structure",
        "What it is made of",
        figures(*drawings),
        f"<p>{text(findings.released(found, run.tasks))}.</p>",
        _kernels(run, found),
        folded("kernels in a task's network, by who trained them", _used(found)),
        folded("channels added + kernels trained, by layer", _layers(found)),
    )


def _kernels(run: Run, found: Structure) -> str:
    head = ["task", "picked", "grown", "released, trained again", "opened and released", "free after it"]
    rows = [
        [
            text(row["name"]),
            number("picked", sum(found.used[place][:-1]), ","),
            number("grown", row["new_kernels"]["grown"], ","),
            number("released", row["new_kernels"]["released"], ","),
            number("left", found.left[place], ","),
            number("free", found.free[place], ","),
        ]
        for place, row in enumerate(run.tasks)
    ]
    return table(head, rows, name="kernels")


def _used(found: Structure) -> str:
    rows = [
        [text(name), *(number("used", count, ",") for count in row)]
        for name, row in zip(found.tasks, found.used, strict=True)
    ]
    return table(["task", *(text(name) for name in found.tasks)], rows, name="used")


def _layers(found: Structure) -> str:
    rows = [
        [
            text(layer),
            *(f"{found.channels[task][place]} + {found.owned[task][place]:,}" for task in range(len(found.tasks))),
        ]
        for place, layer in enumerate(found.layers)
    ]
    return table(["layer", *(text(name) for name in found.tasks)], rows, name="layers")


def _training(run: Run) -> str:
    segments = trainings(run)
    finding = findings.stages(run.tasks)
    drawn = plot(plots.stages, "stages", finding, run.names, segments) if segments else None
    note = TRAINING_NOTE if run.result["method"] == "grown" and drawn else ""
    rows = [
        [text(row["name"]), text(stage["name"]), str(stage["epochs"]), number("stage_val", stage["val"], ".1f")]
        for row in run.tasks
        for stage in row["stages"]
    ]
    stages = folded("the stages", table(["task", "stage", "epochs", "held-out (%)"], rows, (1,), "stages"))
    return section("training", "Through the stages", figures(figure(text(finding), drawn, note, wide=True)), stages)


def trainings(run: Run) -> list[dict[str, Any]]:
    """The epochs of each training, thinned: for each its task's place, stage, target, and what was measured when."""
    places = {name: place for place, name in enumerate(run.names)}
    stages = {row["name"]: {stage["name"] for stage in row["stages"]} for row in run.tasks}
    ours = run.result["method"] == "grown"
    found: list[dict[str, Any]] = []
    last: tuple[Any, ...] = ()
    for event in run.events:
        if event.get("event") != "epoch" or event.get("task") not in places:
            continue
        task, stage = event["task"], str(event.get("stage"))
        if ours and stage not in stages[task]:
            continue
        if (task, stage, event.get("round")) != last or event["epoch"] <= found[-1]["epochs"]:
            target = run.tasks[places[task]]["target"]
            series: dict[str, Any] = {"loss": [], "val": [], "val_loss": []}
            found.append({"task": places[task], "stage": stage, "target": target, "epochs": 0, **series})
            last = (task, stage, event.get("round"))
        found[-1]["epochs"] = event["epoch"]
        for key in ("loss", "val", "val_loss"):
            if isinstance(event.get(key), float | int):
                found[-1][key].append((event["epoch"], event[key]))
    for training in found:
        for key in ("loss", "val", "val_loss"):
            line = training[key]
            step = max(1, len(line) // POINTS)
            training[key] = line[:1] + line[1:-1][step - 1 :: step] + line[-1:] if len(line) > 2 else line
    return found


def _bytes(run: Run) -> str:
    found = run.result["bytes"]
    finding = findings.parts(found)
    rows = [(name.replace("_", " "), count) for name, count in found.items() if name != "total"]
    drawn = plot(plots.bars, "bytes", finding, rows, "bytes", ",")
    cells = [[text(name.replace("_", " ")), number("part", count, ",")] for name, count in found.items()]
    return section("bytes", "Bytes by part", figures(figure(text(finding), drawn)), table(["part", "bytes"], cells))


def _times(run: Run) -> str:
    """Everything on the page that another run of the same seed would not repeat."""
    seconds = run.result["seconds"]
    finding = findings.times(seconds)
    by_task = [(row["name"], sum(stage["seconds"] for stage in row["stages"])) for row in run.tasks]
    drawn = plot(plots.bars, "times", finding, by_task, "seconds in stages", ".1f")
    cells = [[text(name), number("seconds", value, ".1f", " s")] for name, value in seconds.items()]
    stages = [
        [text(row["name"]), text(stage["name"]), number("stage_seconds", stage["seconds"], ".2f", " s")]
        for row in run.tasks
        for stage in row["stages"]
    ]
    return section(
        "times",
        "Time by part",
        figures(figure(text(finding), drawn)),
        table(["part", "time"], cells),
        folded("by stage", table(["task", "stage", "time"], stages, (1,))),
    )


def settings(run: Run) -> str:
    """What was asked for, and with which versions."""
    config = dict(run.config)
    recipe = config.pop("recipe", None)
    first = ("benchmark", "method", "label", "backbone", "protocol", "seed", "device")
    flat = {key: run.result[key] for key in first if key in run.result}
    flat |= {key: run.settings[key] for key in ("width", "threads") if key in run.settings}
    flat |= {key: value for key, value in config.items() if key not in flat}
    if isinstance(recipe, dict):
        flat |= {f"recipe: {key}": value for key, value in recipe.items()}
    flat |= {f"version: {key}": value for key, value in run.settings.get("versions", {}).items()}
    rows = [[text(key), text(value)] for key, value in flat.items()]
    return section("settings", "Settings", folded("all settings", table(["setting", "value"], rows, (1,))))


def figures(*drawn: str) -> str:
    return f'<div class="figures">{"".join(drawn)}</div>'
