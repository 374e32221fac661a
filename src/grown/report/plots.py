"""The page's plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grown.report.page_html import short
from grown.report.svg import BLUE, GREEN, GREY, INK, LINE, ORANGE, SOFT, WIDTH, draw

SERIES = (BLUE, ORANGE, GREEN, GREY)
MARKERS = "osD^vPX*"
MANY = len(MARKERS)  # lines or marks in one plot that can be told apart
REACH = 12.0  # points below the best that a ranking shows to scale
NAMED = 4  # of the tasks that cost most, and of those that gained most
DASHES = ("-", "--", ":", "-.")


def available() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def heat(
    name: str,
    about: str,
    rows: Sequence[Sequence[float | None]],
    labels: tuple[Sequence[str], Sequence[str]],
    words: tuple[str, str, str],
    texts: Sequence[Sequence[str]] | None = None,
    limits: tuple[float, float] | None = None,
) -> str:
    """A matrix as a picture; None is left out. `words`: what goes down, across, and what a number is."""
    import matplotlib
    import numpy as np
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    across, down = max(len(row) for row in rows), len(rows)
    values = np.full((down, across), np.nan)
    for place, row in enumerate(rows):
        values[place, : len(row)] = [np.nan if value is None else value for value in row]
    low, high = limits if limits is not None else (float(np.nanmin(values)), float(np.nanmax(values)))
    scale, colours = Normalize(low, high if high > low else low + 1.0), matplotlib.colormaps["cividis"]
    size = 8.0 if across <= 8 else 6.5

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, norm=scale, edgecolors="none")
        for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
            if texts is not None:
                dark = np.dot(colours(scale(values[row, column]))[:3], (0.299, 0.587, 0.114)) < 0.5
                at = (column + 0.5, row + 0.5)
                axes.text(
                    *at, texts[row][column], ha="center", va="center", size=size, color="#fff" if dark else "#111"
                )
        axes.set_xticks([place + 0.5 for place in range(across)], [short(x, 12) for x in labels[1]])
        axes.set_yticks([place + 0.5 for place in range(down)], [short(y) for y in labels[0]])
        if max(len(short(x, 12)) for x in labels[1]) > 3:
            axes.tick_params(axis="x", labelrotation=40)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.tick_params(axis="x", labelsize=9 if across <= 12 else 6.5)
        axes.spines[:].set_visible(False)
        axes.set(ylabel=words[0], xlabel=words[1] if texts is None else f"{words[1]} ({words[2]})")
        if texts is None:  # few levels, or it would be a picture inside the picture
            levels = ScalarMappable(scale, colours.resampled(16))
            bar = figure.colorbar(levels, ax=axes, pad=0.02, aspect=28, label=words[2])
            bar.outline.set_visible(False)

    return draw(name, about, min(7.0, 1.35 + (0.26 if down <= 10 else 0.2) * down), paint)


def sizes(
    name: str,
    about: str,
    lines: Sequence[tuple[str, Sequence[float]]],
    budget: float | None,
    paper: Sequence[float] | None,
) -> str:
    """Sizes after each task, with the budget and the paper's curve where there is one."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (label, values) in enumerate(lines):
            numbers = range(1, len(values) + 1)
            axes.plot(
                numbers,
                values,
                color=SERIES[place % len(SERIES)],
                marker=MARKERS[place % len(MARKERS)],
                ls=DASHES[place % len(DASHES)],
                label=short(label, 40),
            )
        if paper is not None:
            axes.plot(range(1, len(paper) + 1), paper, color=GREEN, ls=":", label="the paper's, kernels")
        if budget is not None:
            axes.axhline(budget, color=GREY, lw=1.2, ls=(0, (6, 3)), label=f"budget for kernels, {budget:g}x")
        axes.set(xlabel="tasks learned", ylabel="size (multiples of 1x)", ylim=(0, None))
        _whole_ticks(axes, max(len(values) for _, values in lines))
        _legend(figure)

    return draw(name, about, 3.1, paint)


def stages(name: str, about: str, tasks: Sequence[str], segments: Sequence[dict[str, Any]]) -> str:
    """Held-out accuracy and loss through all epochs; one segment a training: task (place), stage, epochs and values."""
    colours = {"reuse": BLUE, "expand": ORANGE}
    scored = any(segment["val"] for segment in segments)

    def paint(figure: Any) -> None:
        panels = figure.subplots(2 if scored else 1, 1, sharex=True, squeeze=False)[:, 0]
        upper, lower = (panels[0] if scored else None), panels[-1]
        place, edges, middles = 0.0, [], []
        for task in range(len(tasks)):
            began = place
            for segment in (found for found in segments if found["task"] == task):
                colour = colours.get(segment["stage"], GREY)
                xs = [place + epoch for epoch, _ in segment["loss"]]
                lower.plot(xs, [value for _, value in segment["loss"]], color=colour, lw=1.2)
                vals = [(place + epoch, value) for epoch, value in segment["val_loss"]]
                lower.plot(*zip(*vals, strict=True), color=colour, lw=1.0, ls=":") if vals else None
                if upper is not None and segment["val"]:
                    xs = [place + epoch for epoch, _ in segment["val"]]
                    upper.plot(xs, [value for _, value in segment["val"]], color=colour, lw=1.3)
                place += segment["epochs"]
            target = next((s["target"] for s in segments if s["task"] == task and s["target"] is not None), None)
            if upper is not None and target is not None and place > began:
                upper.plot([began, place], [target, target], color=INK, lw=1.0, ls="--")
            middles.append((began + place) / 2)
            edges.append(place)
        for axes in panels:
            for edge in edges[:-1]:
                axes.axvline(edge, color=LINE, lw=0.8)
            axes.grid(visible=False, axis="x")
            axes.set_xlim(0, max(edges[-1], 1))
        many = len(tasks) > 10
        lower.set_xticks(middles, [str(n + 1) if many else short(task, 14) for n, task in enumerate(tasks)])
        lower.tick_params(axis="x", length=0, labelrotation=0 if many else 20)
        lower.set(ylabel="loss", xlabel="tasks, each as wide as its epochs", yscale="log")
        _plain_ticks(lower.yaxis)
        if upper is not None:
            upper.set_ylabel("held-out accuracy (%)")
        shown = {segment["stage"] for segment in segments}
        for stage in sorted(shown, key=lambda stage: stage != "reuse"):
            lower.plot([], [], color=colours.get(stage, GREY), label=short(stage))
        if scored:
            lower.plot([], [], color=INK, lw=1.0, ls="--", label="target")
            lower.plot([], [], color=SOFT, lw=1.0, ls=":", label="held-out loss")
        _legend(figure)

    return draw(name, about, 4.6 if scored else 2.8, paint, width=1.8 * WIDTH)


def gains(name: str, about: str, points: Sequence[tuple[str, float, float]], still: int) -> str:
    """What growth cost and what it brought, a point per task that was expanded; `still` tasks were not."""
    outer = {point[0] for key in (1, 2) for point in sorted(points, key=lambda point: -float(point[key]))[:NAMED]}

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.axhline(0, color=SOFT, lw=0.8)
        axes.scatter([x for _, x, _ in points], [y for _, _, y in points], color=BLUE, s=28, zorder=3)
        for place, (task, x, y) in enumerate(points):
            if task not in outer:
                continue
            side = 1 if place % 2 == 0 else -1
            axes.annotate(
                short(task, 14), (x, y), (5, 5 * side), textcoords="offset points", size=8,
                va="bottom" if side > 0 else "top",
            )  # fmt: skip
        if still:
            axes.scatter([0], [0], color=GREY, marker="s", s=28, zorder=3)
            axes.annotate(f"{still} not expanded", (0, 0), (6, -5), textcoords="offset points", size=8, va="top")
        axes.margins(0.22, 0.2)
        axes.set(xlabel="kernels added (multiples of 1x)", ylabel="held-out gain over reuse (points)")

    return draw(name, about, 3.1, paint)


def targets(name: str, about: str, rows: Sequence[tuple[str, float | None, float | None, float]], decided: str) -> str:
    """Per task its target, what reuse reached, and what was committed."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (_, target, reuse, val) in enumerate(rows):
            if reuse is not None and reuse != val:
                axes.plot([reuse, val], [place, place], color=LINE, lw=3, solid_capstyle="round")
                axes.plot(reuse, place, color=ORANGE, marker="s", ls="")
            axes.plot(val, place, color=BLUE, marker="o", ls="")
            if target is not None:
                axes.plot(target, place, color=INK, marker="|", ms=13, mew=1.6, ls="")
        for label, colour, marker in (
            ("target", INK, "|"),
            ("after reuse alone", ORANGE, "s"),
            ("committed", BLUE, "o"),
        ):
            axes.plot([], [], color=colour, marker=marker, ls="", label=label)
        axes.set_yticks(range(len(rows)), [short(task) for task, *_ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{decided} accuracy (%)")
        _legend(figure)

    return draw(name, about, min(7.0, 1.3 + 0.24 * len(rows)), paint)


def bars(name: str, about: str, rows: Sequence[tuple[str, float]], words: str, form: str) -> str:
    """A bar per part, with its number."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        drawn = axes.barh(range(len(rows)), [value for _, value in rows], color=BLUE, height=0.62)
        axes.bar_label(drawn, [f"{value:{form}}" for _, value in rows], padding=3, size=8)
        axes.set_yticks(range(len(rows)), [short(label, 24) for label, _ in rows])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.18)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_xlabel(words)

    return draw(name, about, 0.9 + 0.26 * len(rows), paint)


def scatter(
    name: str, about: str, groups: Sequence[tuple[str, Sequence[tuple[float, float]]]], words: tuple[str, str]
) -> str:
    """A point per run and a larger one for the mean of each group."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (label, points) in enumerate(groups):
            colour, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.scatter(xs, ys, color=colour, marker=marker, s=14, alpha=0.55)
            mean = (sum(xs) / len(xs), sum(ys) / len(ys))
            axes.scatter(*mean, color=colour, marker=marker, s=52, label=short(label, 40))
        axes.margins(0.12)
        axes.set(xlabel=words[0], ylabel=words[1])
        if all(x > 0 for _, points in groups for x, _ in points) and _ratio(groups) > 8:
            axes.set_xscale("log")
            _plain_ticks(axes.xaxis)
        _legend(figure)

    return draw(name, about, 3.2, paint)


def ranking(
    name: str, about: str, groups: Sequence[tuple[str, Sequence[tuple[float, float]]]], words: tuple[str, str]
) -> str:
    """More groups than marks: a row for each, the best on top, with its runs and their mean on two scales."""

    def mean(place: int, points: Sequence[tuple[float, float]]) -> float:
        return sum(point[place] for point in points) / len(points)

    rows = sorted(groups, key=lambda group: -mean(1, group[1]))
    least = max(min(y for _, points in rows for _, y in points), mean(1, rows[0][1]) - REACH)

    def paint(figure: Any) -> None:
        score, size = figure.subplots(1, 2, sharey=True)
        for axes, place, form in ((score, 1, ".1f"), (size, 0, ".2f")):
            for row, (label, points) in enumerate(rows):
                colour, value = ORANGE if label.startswith("grown") else BLUE, mean(place, points)
                shown = max(value, least) if place == 1 else value
                runs = [point[place] for point in points if place == 0 or point[place] >= least]
                axes.scatter(runs, [row] * len(runs), color=colour, s=12, alpha=0.5)
                axes.scatter(shown, row, color=colour, s=34, marker="<" if shown > value else "o")
                axes.annotate(
                    f"{value:{form}}", (shown, row), (6, 0), textcoords="offset points", size=7, va="center"
                )  # fmt: skip
            axes.margins(x=0.22, y=0.03)
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel(words[1 - place])
        score.set_yticks(range(len(rows)), [short(label, 24) for label, _ in rows])
        score.invert_yaxis()
        if all(x > 0 for _, points in rows for x, _ in points) and _ratio(rows) > 8:
            size.set_xscale("log")
            _plain_ticks(size.xaxis)

    return draw(name, about, min(8.0, 0.9 + 0.21 * len(rows)), paint, width=1.4 * WIDTH)


def spreads(
    name: str,
    about: str,
    labels: Sequence[str],
    groups: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    words: tuple[str, str],
) -> str:
    """Per task and group a mean with its deviation."""

    def paint(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, (label, values) in enumerate(groups):
            shift = (place - (len(groups) - 1) / 2) * 0.6 / len(groups)
            axes.errorbar(
                [number + shift for number in range(len(values))], [mean for mean, _ in values],
                [deviation for _, deviation in values], color=SERIES[place % len(SERIES)], ls="",
                marker=MARKERS[place % len(MARKERS)], elinewidth=1.2, label=short(label, 40),
            )  # fmt: skip
        many = len(labels) > 10
        axes.set_xticks(range(len(labels)), [str(n + 1) if many else short(x, 14) for n, x in enumerate(labels)])
        axes.tick_params(axis="x", length=0, labelrotation=0 if many else 20)
        axes.grid(visible=False, axis="x")
        axes.set(xlabel=words[0], ylabel=words[1])
        _legend(figure)

    return draw(name, about, 3.2, paint, width=1.8 * WIDTH)


def _ratio(groups: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> float:
    xs = [x for _, points in groups for x, _ in points]
    return max(xs) / min(xs)


def _plain_ticks(axis: Any) -> None:
    """Numbers as one writes them, on a logarithmic axis."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_locator(NullLocator())


def _whole_ticks(axes: Any, count: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(min(count, 10), integer=True))
    axes.set_xlim(0.7, count + 0.3)


def _legend(figure: Any) -> None:
    figure.legend(loc="outside upper left", ncols=2 if figure.get_figwidth() < 6 else 4, borderaxespad=0.0)
