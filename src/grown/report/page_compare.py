"""Several runs side by side: methods and settings as rows, seeds as spread."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from grown.bench import paper as the_paper
from grown.errors import ConfigError
from grown.report import page_run, plots
from grown.report.page import NO_PLOTS, budget_of, figures, plot
from grown.report.page_html import NONE, figure, folded, number, page, section, table, text
from grown.report.page_run import Run
from grown.report.tables import protocol_note

SAME = ("benchmark", "base_parameters")
WRITTEN = 10  # columns of a picture in which numbers can be read
VARIED = ("backbone", "recipe", "protocol")  # named where they differ

Groups = dict[str, list[Run]]


def read(folders: list[Path]) -> list[Run]:
    """Several runs of one stream, or an error that says which is not."""
    runs = [page_run.read(folder) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        for key in SAME:
            if run.result[key] != first.result[key]:
                found = f"{run.folder} has {key} {run.result[key]!r}, but {first.folder} has {first.result[key]!r}"
                raise ConfigError(f"{found}: they cannot stand side by side")
        if run.names != first.names:
            raise ConfigError(
                f"{run.folder} and {first.folder} learned different tasks: they cannot stand side by side"
            )
    return runs


def group(runs: list[Run]) -> Groups:
    """Runs that differ by their seed alone, under a name that says what the group is."""
    varied = [key for key in VARIED if len({run.result[key] for run in runs}) > 1]
    groups: Groups = {}
    for run in runs:
        parts = [run.result["method"], run.result["label"], *(f"{key} {run.result[key]}" for key in varied)]
        groups.setdefault(", ".join(str(part) for part in parts if part != "default"), []).append(run)
    for name, members in groups.items():
        members.sort(key=lambda run: int(run.result["seed"]))
        for one, other in pairwise(members):
            if one.result["seed"] == other.result["seed"]:
                raise ConfigError(
                    f"{one.folder} and {other.folder} are both {name}, seed {one.result['seed']}; give one of them a "
                    "--label, or leave it out"
                )
    return groups


def make(runs: list[Run]) -> str:
    """The page of several runs."""
    groups, result = group(runs), runs[0].result
    title = f"{result['benchmark']}: {len(runs)} runs of {' and '.join(groups) if len(groups) < 3 else len(groups)}"
    if len(groups) > 2:
        title += " settings"
    return page(
        text(title),
        _summary(runs, groups),
        _tradeoff(groups),
        _tasks(groups, runs[0].names),
        _sizes(groups, result["benchmark"]),
        _runs(groups),
        _times(groups),
    )


def _values(members: list[Run], key: str) -> list[float]:
    return [float(run.result[key]) for run in members]


def _spread(key: str, values: list[float], form: str, unit: str = "") -> str:
    mean = number(key, statistics.mean(values), form, unit if len(values) == 1 else "")
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):{form}}{unit}"


def _summary(runs: list[Run], groups: Groups) -> str:
    rows = []
    for name, members in groups.items():
        later = [sum(bool(row["grew"]) for row in run.tasks[1:]) for run in members]
        low, high = min(later), max(later)
        grown = members[0].result["method"] == "grown"
        rows.append(
            [
                text(name),
                str(len(members)),
                _spread("mean_average_accuracy", _values(members, "average_accuracy"), ".2f"),
                _spread("mean_forgetting", _values(members, "forgetting"), ".2f"),
                (str(low) if low == high else f"{low} to {high}") + f" of {len(runs[0].tasks) - 1}" if grown else NONE,
                _spread("mean_size_x", _values(members, "size_x"), ".3f", "x"),
                _spread("mean_bytes_x", _values(members, "bytes_x"), ".3f", "x"),
            ]
        )
    head = ["setting", "seeds", "average accuracy (%)", "forgetting", "later tasks that grew", "kernels", "everything"]
    about = (
        f"{len(runs[0].tasks)} tasks. Means and standard deviations over seeds. "
        f"1x is {runs[0].result['base_parameters']:,} weights."
    )
    notes = sorted({note for run in runs if (note := protocol_note(run.result)) is not None})
    warning = "".join(f'<p class="warn">{text(note)}.</p>' for note in notes)
    missing = "" if plots.available() else f'<p class="warn">{NO_PLOTS}</p>'
    return f"<p>{text(about)}</p>{warning}{missing}{table(head, rows, name='groups')}"


def _best(groups: Groups, key: str) -> str:
    return max(groups, key=lambda name: statistics.mean(_values(groups[name], key)))


def _tradeoff(groups: Groups) -> str:
    best = _best(groups, "average_accuracy")
    least = min(groups, key=lambda name: statistics.mean(_values(groups[name], "bytes_x")))
    means = {name: statistics.mean(_values(members, "average_accuracy")) for name, members in groups.items()}
    if len(groups) == 1:
        finding = f"{best}: {means[best]:.2f}% on average"
    elif best == least:
        finding = f"{best} is the most accurate and the smallest: {means[best]:.2f}%"
    else:
        points = means[best] - means[least]
        finding = f"{best} is the most accurate; {least} is the smallest, {points:.2f} points below"
    points_of = [
        (name, [(run.result["bytes_x"], run.result["average_accuracy"]) for run in members])
        for name, members in groups.items()
    ]
    many = len(groups) > plots.MANY
    if many:
        words = ("average test accuracy (%)", "everything in the file (x)")
        drawn = plot(plots.ranking, "tradeoff", finding, points_of, words)
    else:
        words = ("everything in the file (multiples of 1x)", "average test accuracy (%)")
        drawn = plot(plots.scatter, "tradeoff", finding, points_of, words)
    note = "A small mark per run, a large one for the mean."
    if many and min(means.values()) < means[best] - plots.REACH:
        note += f" An arrow: more than {plots.REACH:g} points below the best."
    return section("tradeoff", "Accuracy and size", figures(figure(text(finding), drawn, note, wide=many)))


def _tasks(groups: Groups, names: list[str]) -> str:
    spreads = []
    for name, members in groups.items():
        columns = [[run.result["accuracy_matrix"][-1][place] for run in members] for place in range(len(names))]
        spreads.append((name, [(statistics.mean(c), statistics.stdev(c) if len(c) > 1 else 0.0) for c in columns]))
    if len(groups) > 1:
        wins = [max(spreads, key=lambda one: one[1][place][0])[0] for place in range(len(names))]
        most = max(dict.fromkeys(wins), key=wins.count)
        finding = f"{most} is best on {wins.count(most)} of {len(names)} tasks"
    else:
        hard = min(range(len(names)), key=lambda place: spreads[0][1][place][0])
        finding = f"The hardest task is {names[hard]}, {spreads[0][1][hard][0]:.1f}%"
    words = ("task", "test accuracy at the end (%)")
    many_settings = len(groups) > plots.MANY
    if many_settings:
        means = [[mean for mean, _ in values] for _, values in spreads]
        drawn = _map("tasks-plot", finding, means, (list(groups), names), ("setting", *words), ".1f")
    else:
        drawn = plot(plots.spreads, "tasks-plot", finding, names, spreads, words)
    rows = [
        [
            text(task),
            *(
                number("mean_test", values[place][0], ".1f") + (f" ± {values[place][1]:.1f}" if many else "")
                for (_, values), many in zip(spreads, (len(m) > 1 for m in groups.values()), strict=True)
            ),
        ]
        for place, task in enumerate(names)
    ]
    full = table(["task", *(text(name) for name in groups)], rows, name="by-task")
    bars = not many_settings and any(len(m) > 1 for m in groups.values())
    note = "Bars: one standard deviation over seeds." if bars else ""
    return section(
        "by-task-section",
        "Task by task",
        figures(figure(text(finding), drawn, note, wide=not many_settings)),
        folded("the numbers", full),
    )


def _map(
    name: str,
    finding: str,
    rows: list[list[float]],
    labels: tuple[list[str], list[str]],
    words: tuple[str, str, str],
    form: str,
) -> str | None:
    """More settings than a plot has marks: a picture of the numbers, written into it where there is room."""
    texts = [[f"{value:{form}}" for value in row] for row in rows] if len(labels[1]) <= WRITTEN else None
    return plot(plots.heat, name, finding, rows, labels, words, texts)


def _sizes(groups: Groups, benchmark: str) -> str:
    lines: list[tuple[str, Any]] = []
    for name, members in groups.items():
        rows = zip(*([row["size_x"] for row in run.tasks] for run in members), strict=True)
        lines.append((name, [statistics.mean(row) for row in rows]))
    smallest = min(lines, key=lambda line: line[1][-1])
    finding = f"After the last task {smallest[0]} is the smallest in kernels: {smallest[1][-1]:.2f}x"
    ours = [run for members in groups.values() for run in members if run.result["method"] == "grown"]
    budgets = {budget_of(run) for run in ours}
    budget = next(iter(budgets)) if len(budgets) == 1 else None
    paper = the_paper.row(benchmark, "grown") if ours else None
    note = "Kernels alone; means over seeds."
    if len(groups) > plots.MANY:
        names = next(iter(groups.values()))[0].names
        words = ("setting", "after task", "size, multiples of 1x")
        drawn = _map("sizes", finding, [list(values) for _, values in lines], (list(groups), names), words, ".2f")
    else:
        drawn = plot(plots.sizes, "sizes", finding, lines, budget, paper.sizes if paper else None)
        note += f" The paper's curve: {text(paper.source)}." if paper else ""
    return section("size", "Size after each task", figures(figure(text(finding), drawn, note)))


def _runs(groups: Groups) -> str:
    rows = [
        [
            text(run.folder),
            text(name),
            str(run.result["seed"]),
            number("average_accuracy", run.result["average_accuracy"], ".2f"),
            number("forgetting", run.result["forgetting"], "g"),
            number("size_x", run.result["size_x"], ".3f", "x"),
            number("bytes_x", run.result["bytes_x"], ".3f", "x"),
        ]
        for name, members in groups.items()
        for run in members
    ]
    head = ["folder", "setting", "seed", "average accuracy (%)", "forgetting", "kernels", "everything"]
    return section("runs", "Run by run", table(head, rows, (1,), "runs-table"))


def _times(groups: Groups) -> str:
    rows = [
        [
            text(name),
            *(
                _spread(f"mean_{part}", [float(run.result["seconds"][part]) for run in members], ".1f", " s")
                for part in ("training", "evaluation", "total")
            ),
        ]
        for name, members in groups.items()
    ]
    return section("times", "Time by part", table(["setting", "training", "evaluation", "total"], rows))
