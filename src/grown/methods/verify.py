"""Whether a model is what it was when it was written: digests, structure, owners, and every task's probe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError, GrownError
from grown.io import arithmetic, container
from grown.io.container import Content
from grown.io.fields import Fields, first_line
from grown.io.state import State
from grown.methods import method
from grown.methods.base import PROBE_BATCH, probe
from grown.methods.grown import Learner
from grown.methods.grown.algebra import breaches
from grown.nn import limits

TOLERANCE = 1e-4  # times (1 + the largest logit), where arithmetic differs
LARGEST_PROBE = 2**32  # bytes of one piece of memory: a convolution's columns; VGG16 on 224 pixels needs a fifth
LONGEST_PROBE = 10**12  # operations, a minute or so; VGG16 on 224 pixels needs an eighth

PARTS = {
    "kernels": "kernels",
    "factors": "low-rank factors",
    "laterals": "laterals",
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
        _check_work(learner, name)
        logits = probe(learner.network(name), _graph(learner).input_shape)
    except (GrownError, RuntimeError, ValueError, KeyError) as error:
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


def _check_work(learner: Any, task: str) -> None:
    """Refuse to run a network for which a stranger's graph asks too much."""
    if isinstance(learner, Learner):
        largest, operations = limits.work(learner.graph, learner.channels, learner.records[task].narrow())
    else:
        largest, operations = learner.work(task)
    if 4 * PROBE_BATCH * largest > LARGEST_PROBE or PROBE_BATCH * operations > LONGEST_PROBE:
        raise FileError(f"{4 * PROBE_BATCH * largest:,} bytes and {PROBE_BATCH * operations:,} operations are too many")


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
