"""The paper's figure 2 again: conventional growth (Eq. 2) beside learnable sparse growth (Eq. 3) on one task.

    python benchmarks/figure2.py --data DIR --device cuda --out FILE.json [--plot FILE.svg]
    python benchmarks/figure2.py --from FILE.json [--plot FILE.svg]

Both start as the same narrow VGG16-BN, whose candidate channels start closed and open as they learn, with the same
seeds. After each epoch: accuracy and loss on held-out images (the paper shows test images), and the open network's
kernels over 1x. Then it says of each claim that the paper draws from the figure whether it holds here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import drawing
from committed import spread
from grown import data
from grown.bench import folder, presets
from grown.bench.request import check_device, make_template, override
from grown.config import Config
from grown.errors import GrownError, unknown
from grown.methods.grown import GrowthPoint, grow_alone
from grown.methods.grown.alone import alone

KINDS = {"conventional": False, "sparse": True}
POINT = tuple(part.name for part in dataclasses.fields(GrowthPoint))
COLOURS = {"conventional": drawing.ORANGE, "sparse": drawing.BLUE}
CRITERION = "the difference has the claimed sign at every seed, and its mean exceeds twice its standard error"


# --- run -----------------------------------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Grow one network for each kind and seed."""
    check_device(arguments.device)
    tasks = {task.name: task for task in data.stream(arguments.benchmark, arguments.data)}
    name = arguments.task if arguments.task is not None else next(iter(tasks))
    if name not in tasks:
        raise unknown("task", name, tasks)
    task = tasks[name]
    recipe = presets.recipe(arguments.recipe)
    if arguments.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=arguments.epochs)
    config = Config(
        growth="slim",
        score_start=0.005,  # CPG's distance to its threshold; from further away both kinds are alike for many epochs
        start_size=arguments.start,
        seed_size=arguments.cap,
        max_size=arguments.cap,
        recipe=recipe,
        device=arguments.device,
    )
    config = override(config, tuple(arguments.set))
    settings: dict[str, Any] = {
        "benchmark": arguments.benchmark,
        "task": name,
        "backbone": arguments.backbone,
        "width": arguments.width,
        "seeds": arguments.seeds,
        "versions": folder.versions(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    curves = kept(arguments.out, settings, config) if arguments.resume else []
    done = {(curve["kind"], curve["seed"]) for curve in curves}
    for seed in range(arguments.seeds):
        for kind, sparse in KINDS.items():
            if (kind, seed) in done:
                continue
            template = make_template(arguments.backbone, task.input_shape, arguments.width, seed)
            curve = grow_alone(template, task, config.replace(seed=seed), sparse=sparse)
            settings["config"] = curve.learner.config.to_json()  # but for seed and sparse, which the curves say
            curves.append(
                {
                    "kind": kind,
                    "seed": seed,
                    "val": curve.report.val,  # of the committed network
                    "kept_x": curve.report.size.size_x,  # its kernels over 1x: those that the attentive mask left
                    "seconds": curve.report.seconds,
                    "points": {name: [getattr(point, name) for point in curve.points] for name in POINT},
                }
            )
            last = curve.points[-1]
            print(
                f"seed {seed} {kind:12} accuracy {last.accuracy:.1f}%  loss {last.loss:.3f}  "
                f"grow ratio {last.grow_ratio:.3f}x  {curve.report.seconds:.0f} s",
                flush=True,
            )
            folder.write_json(arguments.out, {"settings": settings, "curves": curves})  # also what a stopped run got
    return {"settings": settings, "curves": curves}


def kept(path: Path, settings: dict[str, Any], config: Config) -> list[dict[str, Any]]:
    """The curves that a stopped run left, if they were made as these would be."""
    if not path.is_file():
        sys.exit(f"{path}: there is no such file to go on from")
    found = json.loads(path.read_text())
    both = {"seed": 0, "sparse": True}  # the curves say which each is
    theirs = {**found["settings"], **found["settings"]["config"], **both}
    ours = {**settings, **alone(config, sparse=True).to_json(), **both}
    if different := [name for name in ours if name != "seeds" and ours[name] != theirs.get(name)]:
        sys.exit(f"{path} was measured with other settings: {', '.join(different)}")
    curves: list[dict[str, Any]] = found["curves"]
    return curves


# --- say -----------------------------------------------------------------------------------------------------------


def roughness(values: list[float]) -> float:
    """How far an epoch lies from the middle of its neighbours, on average: perturbations without the trend."""
    bends = [abs(b - (a + c) / 2) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return statistics.mean(bends) if bends else 0.0


def tenths(values: list[float]) -> list[float]:
    """Means over every tenth of the epochs, one starting at each epoch."""
    size = max(1, len(values) // 10)
    return [statistics.mean(values[first : first + size]) for first in range(len(values) - size + 1)]


def summarise(curve: dict[str, Any]) -> dict[str, float]:
    """What the claims are about, in numbers."""
    points = curve["points"]
    half = max(3, len(points["epoch"]) // 2)
    loss = tenths(points["loss"])
    return {
        "accuracy_roughness": roughness(points["accuracy"][:half]),
        "loss_roughness": roughness(points["loss"][:half]),
        "loss_rise": loss[-1] - min(loss),
        "accuracy": tenths(points["accuracy"])[-1],
        "grow_ratio": points["grow_ratio"][-1],
        "kept_x": curve["kept_x"],
    }


@dataclasses.dataclass(frozen=True)
class Difference:
    """One number of both kinds, by seed."""

    conventional: list[float]
    sparse: list[float]

    @property
    def each(self) -> list[float]:
        """Conventional less sparse, a seed each."""
        return [a - b for a, b in zip(self.conventional, self.sparse, strict=True)]

    @property
    def larger(self) -> bool | None:
        """Whether it is larger with conventional growth, by the criterion; None: one seed cannot say."""
        return exceeds_zero(self.each) if len(self.each) > 1 else None

    @property
    def clear(self) -> bool:
        """Whether the kinds differ, either way, by the criterion."""
        return len(self.each) > 1 and (exceeds_zero(self.each) or exceeds_zero([-value for value in self.each]))

    def line(self, unit: str, digits: int) -> str:
        """Both kinds and their difference, with the spread over seeds."""
        both = [f"{spread(values, digits)}{unit}" for values in (self.conventional, self.sparse, self.each)]
        return f"conventional {both[0]}, sparse {both[1]}, difference {both[2]}"


def exceeds_zero(values: list[float]) -> bool:
    """The criterion."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return min(values) > 0 and statistics.mean(values) > 2 * error


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """The seeds that have both kinds: a run that was stopped may have ended between the two."""
    done = set.intersection(*({c["seed"] for c in result["curves"] if c["kind"] == kind} for kind in KINDS))
    return {**result, "curves": [curve for curve in result["curves"] if curve["seed"] in done]}


def compare(result: dict[str, Any]) -> dict[str, Difference]:
    """Every number of `summarise`, of both kinds."""
    found = {kind: [summarise(c) for c in result["curves"] if c["kind"] == kind] for kind in KINDS}
    names = found["sparse"][0]
    return {name: Difference(*([row[name] for row in found[kind]] for kind in KINDS)) for name in names}


def verdict(result: dict[str, Any]) -> str:
    """The paper's two claims, the numbers, and whether each holds."""
    of = compare(result)
    better = of["accuracy"].larger
    unstable = [of[name].larger for name in ("accuracy_roughness", "loss_roughness", "loss_rise")]
    aggressive = [of["grow_ratio"].larger, None if better is None else not better]
    lines = [
        f"mean ± standard deviation over {len(of['accuracy'].each)} seeds; larger means: {CRITERION}",
        "",
        "Claim 1, unstable training: with conventional growth accuracy and loss have large perturbations in the",
        "earlier epochs, and the loss increases in the later ones.",
        f"  accuracy, roughness in the first half  {of['accuracy_roughness'].line(' points', 2)}: {say(unstable[0])}",
        f"  loss, roughness in the first half      {of['loss_roughness'].line('', 4)}: {say(unstable[1])}",
        f"  loss, rise from its lowest to its end  {of['loss_rise'].line('', 3)}: {say(unstable[2])}",
        f"  {conclude(unstable)} (criterion: all three larger with conventional growth)",
        "",
        "Claim 2, overly aggressive growth: conventional growth has a larger grow ratio but no better accuracy.",
        f"  grow ratio at the end                  {of['grow_ratio'].line('x', 3)}: {say(aggressive[0])}",
        f"  accuracy at the end                    {of['accuracy'].line('%', 2)}: {say(better)}",
        f"  {conclude(aggressive)} (criterion: the first larger, the second not larger, with conventional growth)",
        f"  beside it, kernels kept at the end     {of['kept_x'].line('x', 3)}",
    ]
    return "\n".join(lines)


def say(larger: bool | None) -> str:
    """One comparison in words."""
    return "one seed says nothing" if larger is None else "larger" if larger else "not larger"


def conclude(parts: list[bool | None]) -> str:
    """A claim in words."""
    if any(part is None for part in parts):
        return "UNDECIDED: more than one seed is needed"
    return "HOLDS" if all(parts) else "DOES NOT HOLD"


# --- draw ----------------------------------------------------------------------------------------------------------


def titles(of: dict[str, Difference]) -> dict[str, str]:
    """What each panel shows, as a sentence with its numbers."""
    said = {
        "accuracy": ("accuracy", "Accuracy: ends higher", "{:.1f}%"),
        "loss": ("loss_rise", "Loss: rises more", "by {:.2f}"),
        "grow_ratio": ("grow_ratio", "Size: grows more", "to {:.2f}x"),
    }
    found = {}
    for panel, (name, more, form) in said.items():
        values = {kind: statistics.mean(getattr(of[name], kind)) for kind in KINDS}
        numbers = ", ".join(f"{kind} {form.format(value)}" for kind, value in values.items())
        most = max(values, key=lambda kind: values[kind])
        head = f"{more} with {most} growth" if of[name].clear else f"{more.partition(':')[0]}: no clear difference"
        found[panel] = f"{head}\n{numbers}"
    return found


def draw(result: dict[str, Any], path: Path) -> None:
    """Three panels: seeds as thin lines, their mean as a thick one."""
    plt = drawing.pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    of = compare(result)
    heads = titles(of)
    labels = {
        "accuracy": "held-out accuracy (%)",
        "loss": "held-out loss (nats)",
        "grow_ratio": "grow ratio (open network over 1x)",
    }
    for panel, (name, label) in zip(panels, labels.items(), strict=True):
        for kind in KINDS:
            curves = [curve["points"] for curve in result["curves"] if curve["kind"] == kind]
            for points in curves:
                panel.plot(points["epoch"], points[name], color=COLOURS[kind], linewidth=0.6, alpha=0.5)
            mean = [statistics.mean(values) for values in zip(*(points[name] for points in curves), strict=True)]
            panel.plot(curves[0]["epoch"], mean, color=COLOURS[kind], linewidth=2.2, label=f"{kind} growth")
        panel.set(xlabel="epoch", ylabel=label, title=heads[name])
        panel.xaxis.get_major_locator().set_params(integer=True)
    panels[2].set_ylim(bottom=0)
    panels[0].legend(loc="lower right")
    settings = result["settings"]
    head = f"{settings['backbone']} growing on one task, {settings['task']}"
    figure.suptitle(
        f"{head}; {len(of['accuracy'].each)} seeds (thin) and their mean",
        x=0.01,
        ha="left",
        fontsize=10,
        color=drawing.GREY,
    )
    drawing.save(figure, path, verdict(result))


# --- command -------------------------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, help="run nothing: take the figures from this file")
    parser.add_argument("--data", type=Path, help="where CIFAR-100 is")
    parser.add_argument("--benchmark", default="cifar100-superclass", help="the stream that the task is from")
    parser.add_argument("--task", help="its name; the stream's first if not given")
    parser.add_argument("--backbone", default="vgg16-bn")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--start", type=float, default=0.05, help="the size to start from")
    parser.add_argument("--cap", type=float, default=1.0, help="the size to grow to, at most")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--resume", action="store_true", help="keep the curves that --out has, and run those it lacks")
    parser.add_argument("--plot", type=Path, help="where to draw them: .svg or .png")
    arguments = parser.parse_args(argv)
    if arguments.source is None and arguments.out is None:
        parser.error("give --out FILE.json for a new measurement, or --from FILE.json to use an old one")
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1, but got {arguments.seeds}")
    return arguments


def main(argv: list[str] | None = None) -> None:
    """Measure or read, write, draw, say."""
    arguments = parse(argv)
    if arguments.plot is not None:
        drawing.pyplot()  # missing matplotlib is found before the trainings, not after
    if arguments.source is not None:
        if not arguments.source.is_file():
            sys.exit(f"{arguments.source}: there is no such file")
        result = json.loads(arguments.source.read_text())
    else:
        try:
            result = measure(arguments)
        except GrownError as error:
            sys.exit(str(error))
    result = complete(result)
    if not result["curves"]:
        sys.exit(f"{arguments.source}: no seed has both kinds of growth")
    if arguments.plot is not None:
        draw(result, arguments.plot)
    print(verdict(result))


if __name__ == "__main__":
    main()
