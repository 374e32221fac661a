"""The earlier task whose features suit a new one best, and a network that starts as that task's.

Relatedness is measured, not guessed: each earlier task's network turns the new task's images into features, a linear
classifier is fitted to them in closed form, and the held-out images say which features were best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.data.task import Normalisation, Part
from grown.methods.grown.record import Record
from grown.train.evaluate import logits_of

if TYPE_CHECKING:
    from grown.methods.grown.stage import Stage

RIDGE = 1e-2  # of the features' own scale


def most_related(stage: Stage) -> Record:
    """The earlier task whose features classify this task's held-out images best."""
    learner = stage.learner
    records = list(learner.records.values())
    best = (-1.0, records[0])
    for record in records if len(records) > 1 else []:
        network = learner.extract(record.name).to(learner.config.device)
        head = network.get_submodule(learner.graph.head.name)
        seen, asked = (
            _features(network, head, part, record.normalisation, learner.config.device)
            for part in (stage.fit, stage.held_out)
        )
        accuracy = _ridge_accuracy(seen, stage.fit.labels, asked, stage.held_out.labels)
        if accuracy > best[0]:
            best = (accuracy, record)
    return best[1]


def _features(network: nn.Module, head: nn.Module, part: Part, normalise: Normalisation, device: str) -> Tensor:
    found: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].float()))
    try:
        logits_of(network, part, normalise, device)
    finally:
        hook.remove()
    return torch.cat(found)


def _ridge_accuracy(seen: Tensor, labels: Tensor, asked: Tensor, answers: Tensor) -> float:
    """A linear classifier by least squares on standardised features: its accuracy on what it was not fitted to."""
    mean, deviation = seen.mean(0), seen.std(0).clamp_min(1e-6)
    x, y = (seen - mean) / deviation, F.one_hot(labels.to(seen.device)).to(seen.dtype)
    gram = x.T @ x / len(x) + RIDGE * torch.eye(x.shape[1], device=x.device)
    weights = torch.linalg.solve(gram, x.T @ (y - y.mean(0)) / len(x))
    scores = (asked - mean) / deviation @ weights + y.mean(0)
    return float((scores.argmax(1) == answers.to(scores.device)).float().mean())


@torch.no_grad()
def start_from(stage: Stage, record: Record) -> None:
    """Begin with an earlier task's picks and norms: other frozen kernels start as far below the threshold as above."""
    network = stage.network
    start = network.settings.start
    for name, layer in network.masked().items():
        if layer.scores is None:
            continue
        rows, columns = network.banks[name].view(network.widths, record.widths)
        used = torch.zeros(layer.is_frozen.shape, dtype=torch.bool)
        used[rows[:, None], columns] = record.active[name]
        away = layer.is_frozen & ~used.to(layer.is_frozen.device)
        layer.scores[away] = -start
    for node in stage.learner.graph.norms():
        norm: Any = network.layer(node.name)
        kept = _positions(stage, record, node.name).to(norm.weight.device)
        for key in ("weight", "bias"):
            if f"{node.name}.{key}" in record.own:
                getattr(norm, key)[kept] = record.own[f"{node.name}.{key}"].to(norm.weight.device)


def _positions(stage: Stage, record: Record, name: str) -> Tensor:
    """Where the channels that a task kept lie in the network in training."""
    network, found, first = stage.network, [], 0
    for group in network.channels.output[name].groups:
        found.append(record.kept[group].nonzero().flatten() + first)
        first += network.widths[group]
    return torch.cat(found)
