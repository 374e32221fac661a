"""Whether a model is what it was when it was written: digests, structure, owners, and every task's probe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grown.errors import GrownError
from grown.io import arithmetic, container
from grown.io.container import Content
from grown.io.fields import Fields, first_line
from grown.io.state import State
from grown.methods import method
from grown.methods.base import PROBE_BATCH, probe
from grown.methods.grown import Learner
from grown.methods.grown.algebra import breaches

TOLERANCE = 1e-4  # times (1 + the largest logit), where arithmetic differs
LARGEST_PROBE = 2**30  # bytes of one activation

PARTS = {
    "kernels": "kernels",
    "owners": "owners",
    "picked": "picked bits",
    "soft": "soft values",
    "kept": "kept channels",
    "own": "norms and biases",
    "head": "head",
    "probe": "stored probe",
}


@dataclass
class Verification:
    """What was found."""

    tensors: int
    version: int
    tasks: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)  # tasks whose probe agrees bit for bit
    close: list[str] = field(default_factory=list)  # tasks whose probe agrees to the tolerance, and why no closer
    differences: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def verify(path: str | Path) -> Verification:
    """Check a model file; raises where it is not even well-formed."""
    return verify_content(container.read(path))


def verify_content(content: Content) -> Verification:
    """Check a model that was read: all its digests, and whatever of the rest can still be looked at."""
    found = Verification(len(content.tensors), content.written)
    if content.metadata_damaged:
        found.differences.append("metadata: their digest differs")
    names = _task_names(content.meta)
    found.differences += [f"{_where(name, names)}: the digest differs" for name in content.damaged]
    found.differences += [f"{_where(name, names)}: NaN or infinity" for name in content.not_finite]
    try:
        learner = method(Fields(content.meta, "its metadata").text("method"))(None)
        learner.load_state(State(content.tensors, content.meta))
    except GrownError as error:
        found.differences.append(f"structure: {error}")
        return found
    found.tasks = list(learner.tasks)
    if isinstance(learner, Learner):
        found.differences += breaches(learner)
    for entry in content.meta["tasks"]:
        _check_probe(found, learner, entry, content.tensors[f"task/{entry['number']}/probe"])
    return found


def _check_probe(found: Verification, learner: Any, entry: dict[str, Any], stored: Tensor) -> None:
    name, written = entry["name"], entry["arithmetic"]
    try:
        if _largest_activation(learner, name) * 4 * PROBE_BATCH > LARGEST_PROBE:
            found.differences.append(f"task {name!r}: its probe would take more than {LARGEST_PROBE:,} bytes")
            return
        logits = probe(learner.network(name), _graph(learner).input_shape)
    except (RuntimeError, ValueError, KeyError) as error:
        found.differences.append(f"task {name!r}: its network does not run ({first_line(error)})")
        return
    if logits.shape == stored.shape and torch.equal(logits.view(torch.int32), stored.view(torch.int32)):
        found.exact.append(name)
        return
    worst = float((logits - stored).abs().max()) if logits.shape == stored.shape else math.nan
    limit = TOLERANCE * (1 + float(stored.abs().max()))
    if written == arithmetic.here() or not worst <= limit:
        found.differences.append(f"task {name!r}: its logits differ from its stored probe by up to {worst:.3g}")
        return
    source = f"written with {written}" if written is not None else "of a version that does not say with what"
    found.close.append(
        f"task {name!r}: {source}, and this is {arithmetic.here()}; "
        f"logits agree to {worst:.3g}, where {limit:.3g} is allowed"
    )


def _graph(learner: Any) -> Any:
    return learner.graph if isinstance(learner, Learner) else learner.training.graph


def _largest_activation(learner: Any, task: str) -> int:
    """Elements of the largest activation of one image, at the widths of the task's network."""
    grown = isinstance(learner, Learner)
    channels = learner.channels if grown else learner.training.channels
    widths = learner.records[task].narrow() if grown else learner.training.widths
    sizes: list[int] = []
    for node in _graph(learner).nodes[:-1]:
        axis = channels.output[node.name]
        sizes.append(channels.width(axis, widths) * axis.repeat * math.prod(node.shape[1:]))
    return max(sizes)


def _task_names(meta: dict[str, Any]) -> dict[str, str]:
    """number -> name, as far as the metadata can be read."""
    entries = meta.get("tasks")
    return {
        str(entry.get("number")): str(entry.get("name"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }


def _where(tensor: str, names: dict[str, str]) -> str:
    """A tensor's name in words: which layer or task, and which part of it."""
    kind, _, rest = tensor.partition("/")
    middle, _, part = rest.rpartition("/")
    words = PARTS.get(part, part)
    if kind == "task":
        return f"task {names.get(middle, middle)!r}: {words}"
    return f"layer {middle}: {words}" if kind == "bank" else tensor
