"""What a run shows, in sentences that are computed from it: the titles of the page's pictures. Plain text, not HTML."""

from __future__ import annotations

from typing import Any

from grown.bench.paper import Row
from grown.report.page_run import Run, Structure


def memory(run: Run) -> str:
    """Whether anything was forgotten."""
    matrix = run.result["accuracy_matrix"]
    if len(matrix) == 1:
        return f"The only task reaches {matrix[0][0]:.1f}%"
    changes = {
        name: max(row[place] for row in matrix[place:]) - matrix[-1][place] for place, name in enumerate(run.names[:-1])
    }
    worst = max(changes, key=lambda name: changes[name])
    if changes[worst] > 0:
        lost = run.result["forgetting"]
        return f"{lost:.1f} points were forgotten on average, most by {worst}: {changes[worst]:.1f} points"
    moved = any(row[place] != matrix[place][place] for place in range(len(matrix)) for row in matrix[place:])
    if moved:
        return "Nothing was forgotten, and some earlier tasks became better"
    return "Nothing was forgotten: down each column, the accuracy stays the same"


def size(run: Run, budget: float | None, paper: Row | None) -> str:
    """How the size went."""
    rows = run.tasks
    end = f"{rows[-1]['size_x']:.2f}x"
    if len(rows) == 1:
        return f"The first task takes {end}"
    grew = sum(bool(row["grew"]) for row in rows[1:])
    found = f"{grew} of {len(rows) - 1} later tasks grew; kernels went from {rows[0]['size_x']:.2f}x to {end}"
    if paper is not None and len(rows) <= len(paper.sizes):
        found += f", the paper's to {paper.sizes[len(rows) - 1]:.2f}x"
    elif budget is not None:
        found += f" of {budget:g}x allowed"
    return found


def reuse(structure: Structure) -> str:
    """How much of later tasks is taken from earlier ones."""
    used = structure.used
    later = [sum(row) for row in used[1:]]
    if not sum(later):
        return "There is no later task that could reuse anything"
    picked = [sum(row[:-1]) for row in used[1:]]
    given = [sum(row[owner] for row in used[owner + 1 :]) for owner in range(len(used) - 1)]
    best = max(range(len(given)), key=lambda owner: given[owner])
    share, most = sum(picked) / sum(later), given[best] / max(1, sum(given))
    return f"Later tasks are made of {share:.0%} earlier kernels; {structure.tasks[best]} trained {most:.0%} of those"


def layers(structure: Structure) -> str:
    """Where later tasks trained kernels."""
    later = structure.owned[1:]
    totals = [sum(row[layer] for row in later) for layer in range(len(structure.layers))]
    if not sum(totals):
        return "No later task trained a kernel of its own"
    most = max(range(len(totals)), key=lambda layer: totals[layer])
    share = totals[most] / sum(totals)
    return f"Of {sum(totals):,} kernels that later tasks trained, {share:.0%} are in layer {structure.layers[most]}"


def released(structure: Structure, rows: list[dict[str, Any]]) -> str:
    """What became of released kernels."""
    left, again = sum(structure.left), sum(row["new_kernels"]["released"] for row in rows)
    return f"{left:,} kernels were released, {again:,} of them trained by later tasks; {structure.free[-1]:,} are free"


def stage_of(row: dict[str, Any], name: str) -> dict[str, Any] | None:
    """A task's first training of this name: "reuse" is one to its end, "glance" a short one before it."""
    return next((stage for stage in row["stages"] if stage["name"] == name), None)


def reused(row: dict[str, Any]) -> float | None:
    """Held-out accuracy by reuse alone, where an expansion was measured too; else what growth gained is not known."""
    reuse = stage_of(row, "reuse")
    expanded = any(stage["name"] == "expand" and stage["val"] is not None for stage in row["stages"])
    return float(reuse["val"]) if reuse is not None and expanded else None


def untried(row: dict[str, Any]) -> bool:
    """Whether a task grew beyond reuse without such a measurement."""
    asked = stage_of(row, "reuse") or stage_of(row, "glance")
    return bool(row["grew"]) and asked is not None and reused(row) is None


def gain(row: dict[str, Any]) -> float:
    """Held-out points that it ended above reuse alone."""
    before = reused(row)
    return float(row["val"] - before) if before is not None else 0.0


def stages(rows: list[dict[str, Any]]) -> str:
    """What expansion did to held-out accuracy."""
    asked = [row for row in rows if reused(row) is not None]
    if not asked and any(untried(row) for row in rows):
        return "No expansion was compared with finished reuse on held-out images, so what they gained is not known"
    if not asked:
        names = {stage["name"] for row in rows for stage in row["stages"]}
        return "No task was expanded after reuse" if "reuse" in names else "How the loss fell in each task"
    rose = [row for row in asked if gain(row) > 0]
    if not rose:
        return f"Expansion raised held-out accuracy in none of the {len(asked)} tasks that were expanded"
    most = max(gain(row) for row in rose)
    return (
        f"Expansion raised held-out accuracy in {len(rose)} of the {len(asked)} tasks that were expanded, "
        f"by up to {most:.1f} points"
    )


def growth(points: list[tuple[str, float, float]], unknown: int) -> str:
    """What growth cost and brought."""
    if not points and unknown:
        return f"{unknown} tasks grew without a comparison with finished reuse: what that gained is not known"
    if not points:
        return "No later task was expanded"
    cost, brought = sum(x for _, x, _ in points), sum(y for _, _, y in points)
    count = f"{len(points)} task" + ("s" if len(points) > 1 else "")
    return f"In {count} that went beyond reuse, {cost:.3f}x more kernels brought {brought:.1f} points in all"


def verdict(row: dict[str, Any], margin: float) -> str:
    """Met, within the margin, or missed."""
    if row["target"] is None:
        return ""
    short = row["target"] - row["val"]
    if short <= 0:
        return "met"
    return f"within the margin, {short:.1f} below" if short <= margin else f"missed by {short:.1f}"


def targets(run: Run) -> str:
    """How many targets were met."""
    rows = [row for row in run.tasks if row["target"] is not None]
    missed = {row["name"]: row["target"] - row["val"] for row in rows if row["target"] - row["val"] > run.margin}
    allowed = f", or come within the margin ({run.margin:g})" if run.margin > 0 else ""
    if not missed:
        return f"All {len(rows)} tasks meet their targets{allowed}"
    worst = max(missed, key=lambda name: missed[name])
    met = len(rows) - len(missed)
    return f"{met} of {len(rows)} tasks meet their targets{allowed}; {worst} misses by {missed[worst]:.1f} points"


def why(row: dict[str, Any], run: Run) -> str:
    """Why a task grew, or did not."""
    target, done = row["target"], [stage for stage in row["stages"] if stage["val"] is not None]
    if target is None:
        return "there was no target"
    reuse, glance = stage_of(row, "reuse"), stage_of(row, "glance")
    if not done or (done[0]["name"] == "expand" and reuse is None):
        if run.config.get("start_size") is not None and run.config["start_size"] == run.config.get("seed_size"):
            return "the first task starts at the seed size"
        return "the first task starts small and grows up to the seed size"
    bar = f"the target {target:.1f}" + (f" less the margin {run.margin:g}" if run.margin else "")
    reached = (reuse or done[0])["val"]
    if reuse is None and glance is not None:
        missed = f"after {glance['epochs']} epochs reuse was at {reached:.1f}, hopelessly below {bar}"
    elif reached >= target - run.margin:
        return f"reuse reached {reached:.1f}, not below {bar}: no need to grow"
    else:
        missed = f"reuse reached {reached:.1f}, below {bar}"
    if not run.config.get("grow", True):
        return f"{missed}; growth is switched off"
    trials = sum(stage["name"] == "expand" for stage in done)
    if row["grew"] and not trials:
        return f"{missed}: expanded"
    if not trials and not run.config.get("expansions", 1):
        return f"{missed}; the settings allow no expansion"
    if not trials:  # an expansion without a trial leaves no stage, so there the reason is not known
        return f"{missed}; " + (
            "the caps left no room to grow" if run.config.get("trial", True) else "nothing was added"
        )
    times = "once" if trials == 1 else f"{trials} times"
    if row["grew"]:
        return f"{missed}: expanded {times}, and held-out accuracy rose to {row['val']:.1f}"
    if row["val"] > reached:
        return f"{missed}: expanded {times}; it rose to {row['val']:.1f} without a new channel in use"
    return f"{missed}: expanded {times}, but held-out accuracy did not rise, so nothing of it was kept"


def parts(found: dict[str, int]) -> str:
    """Where the bytes are."""
    rest = {name: count for name, count in found.items() if name != "total"}
    most = max(rest, key=lambda name: rest[name])
    return f"{rest[most] / max(1, found['total']):.0%} of the {found['total']:,} bytes are {most.replace('_', ' ')}"


def times(seconds: dict[str, float]) -> str:
    """Where the time went."""
    total = max(seconds["total"], 1e-9)
    if seconds["training"] > total:  # trainings that ran side by side
        return f"The run took {total:.1f} s, its trainings one by one {seconds['training']:.1f} s"
    return f"{seconds['training'] / total:.0%} of {seconds['total']:.1f} s was training"
