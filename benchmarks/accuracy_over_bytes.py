"""Draws accuracy over bytes from the committed results of CIFAR-100 Superclass.

    python benchmarks/accuracy_over_bytes.py [--results FOLDER] [--out FILE.svg]

A point is the mean over the seeds of one method and label; bars are one standard deviation. The label `curve` marks
further sizes of a method: its runs are points of their own, while `curve:NAME` puts the seeds of one size together.
Points of one method and as many epochs a task are joined by a line. Other labels are in the table, not here.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import committed
import drawing

NAMES = {
    ("grown", "default"): "GROWN",
    ("grown", "small"): "GROWN, small",
    ("grown", "best"): "GROWN, three times the epochs",
    ("scratch", "default"): "Scratch, full width",
    ("scratch", "equal-bytes"): "",
    ("scratch", "equal-bytes-small"): "",
    ("scratch", "equal-bytes-longer"): "",
    ("scratch", "longer"): "Scratch, full width",
    ("finetune", "default"): "Fine-tune",
    ("joint", "default"): "joint: all tasks at once, not continual",
}
LOOKS = {
    "grown": (drawing.BLUE, "o"),
    "scratch": (drawing.ORANGE, "s"),
    "finetune": (drawing.GREEN, "D"),
    "joint": (drawing.GREY, "^"),
}
JOINED = ("grown", "scratch")


@dataclass(frozen=True)
class Point:
    """One setting over its seeds."""

    method: str
    label: str
    epochs: int  # of each task but the first
    bytes_x: list[float]
    accuracy: list[float]

    @property
    def x(self) -> float:
        """Its bytes."""
        return statistics.mean(self.bytes_x)

    @property
    def y(self) -> float:
        """Its accuracy."""
        return statistics.mean(self.accuracy)

    @property
    def bars(self) -> tuple[float, float]:
        """One standard deviation each way, of bytes and of accuracy."""
        if len(self.accuracy) < 2:
            return 0.0, 0.0
        return statistics.stdev(self.bytes_x), statistics.stdev(self.accuracy)

    @property
    def name(self) -> str:
        """What stands beside it; a curve's points have no name."""
        return "" if self.label.startswith("curve") else NAMES.get((self.method, self.label), self.label)


def read(folder: Path) -> list[Point]:
    """Every setting that is drawn, from the fewest bytes to the most."""
    drawn = {
        (method, label): runs
        for (method, label), runs in committed.read(folder).items()
        if (method, label) in NAMES or (method in JOINED and label.startswith("curve"))
    }
    committed.check_alike(run for runs in drawn.values() for run in runs)
    points = []
    for (method, label), runs in drawn.items():
        if label != "curve":
            committed.check_seeds(runs)
        for part in [[run] for run in runs] if label == "curve" else [runs]:
            bytes_x, accuracy = ([float(run[name]) for run in part] for name in ("bytes_x", "average_accuracy"))
            points.append(Point(method, label, part[0]["tasks"][-1]["stages"][-1]["epochs"], bytes_x, accuracy))
    return sorted(points, key=lambda point: point.x)


def lines(points: list[Point], method: str) -> dict[int, list[Point]]:
    """A method's points by epochs a task, the fewest first."""
    epochs = sorted({point.epochs for point in points if point.method == method})
    return {n: [point for point in points if (point.method, point.epochs) == (method, n)] for n in epochs}


def finding(points: list[Point]) -> str:
    """The title: GROWN against Scratch of the same bytes, read off the better of Scratch's lines."""
    ours = [point for point in points if (point.method, point.label) == ("grown", "default")]
    if ours:
        found = {n: at(line, ours[0].x) for n, line in lines(points, "scratch").items()}
        rivals = {n: value for n, value in found.items() if value is not None}
        if rivals:
            epochs = max(rivals, key=lambda n: rivals[n])
            gain = ours[0].y - rivals[epochs]
            where = f"{abs(gain):.1f} points {'above' if gain >= 0 else 'below'}"
            size = f"At {ours[0].x:.2g}x of the bytes, GROWN ({ours[0].epochs} epochs a task)"
            return f"{size} is {where}\nScratch of the same size ({epochs} epochs)"
    return "Accuracy over the bytes of the whole saved file"


def at(points: list[Point], x: float) -> float | None:
    """Accuracy at these bytes, on the line through the points; None outside of it."""
    for low, high in pairwise(points):
        if low.x <= x <= high.x:
            if low.x == high.x:
                return low.y
            share = math.log(x / low.x) / math.log(high.x / low.x)
            return low.y + share * (high.y - low.y)
    return None


def in_words(points: list[Point]) -> list[str]:
    """A line for each point."""
    return [
        f"{point.method:9} {point.label:18} {point.x:7.3f}x  {committed.spread(point.accuracy, 2)}%  "
        f"{point.epochs} epochs, {len(point.accuracy)} seeds"
        for point in points
    ]


def draw(points: list[Point], path: Path) -> None:
    """One panel, names beside the points."""
    plt = drawing.pyplot()
    figure, panel = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for method, (colour, marker) in LOOKS.items():
        mine = [point for point in points if point.method == method]
        if method in JOINED:
            by_epochs = lines(points, method)
            for epochs, line in by_epochs.items():
                style = "-" if epochs == max(by_epochs) else "--"
                label = f"{NAMES[method, 'default'].partition(',')[0]}, {epochs} epochs a task"
                panel.plot([p.x for p in line], [p.y for p in line], style, color=colour, label=label, linewidth=1.5)
        for point in mine:
            along, across = point.bars
            small = point.label.startswith("curve")
            panel.errorbar(
                point.x,
                point.y,
                xerr=along or None,
                yerr=across or None,
                color=colour,
                marker=marker,
                markersize=4 if small else 7,
                capsize=2,
                linewidth=1,
                zorder=3,
            )
            _name(panel, point, colour)
    for point in points:
        if point.method == "joint":
            panel.axhline(point.y, color=LOOKS[point.method][0], linewidth=0.8, linestyle=":", zorder=1)
    figure.legend(loc="outside lower center", ncols=3)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(plt.matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.xaxis.set_minor_formatter(lambda *_: "")
    panel.set_xlim(min(point.x for point in points) / 2.2, max(point.x for point in points) * 1.5)
    panel.margins(y=0.12)
    panel.set(
        xlabel="bytes of the saved model, all tasks, over those of one full network's weights (log scale)",
        ylabel="average test accuracy (%)",
        title=finding(points),
    )
    drawing.save(figure, path, "\n".join(in_words(points)))


def _name(panel: Any, point: Point, colour: str) -> None:
    """Above and left of the point; below and right for Scratch: lines rise, so they and the names stay apart."""
    if not point.name:
        return
    above = point.method != "scratch"
    left = above or point.x > 1  # at the picture's right edge there is no room to the right
    panel.annotate(
        point.name,
        (point.x, point.y),
        xytext=(-6 if left else 6, 5 if above else -13 if left else -7),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom" if above else "top",
        color=colour,
    )


def main(argv: list[str] | None = None) -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=committed.RESULTS / "cifar100-superclass")
    parser.add_argument("--out", type=Path, default=committed.ROOT / "docs" / "images" / "accuracy_over_bytes.svg")
    arguments = parser.parse_args(argv)
    points = read(arguments.results)
    if not points:
        raise SystemExit(f"{arguments.results}: there is no result to draw")
    draw(points, arguments.out)
    print("\n".join(in_words(points)))


if __name__ == "__main__":
    main()
