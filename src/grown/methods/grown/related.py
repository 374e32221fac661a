"""The earlier task whose features suit a new one best, and a network that starts as that task's.

Relatedness is measured, not guessed: each earlier task's network turns the new task's images into features, a linear
classifier is fitted to them in closed form, and its error on the held-out images says which features are best. Squared
error, since a few hundred right-or-wrong answers hardly tell two networks apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.methods.grown.record import Record
from grown.nn.axes import Widths
from grown.nn.graph import BANKED, NORMS
from grown.train.batches import EVALUATION_BATCH
from grown.train.evaluate import evaluating

if TYPE_CHECKING:
    from grown.methods.grown.stage import Stage

RIDGE = 0.1  # of the features' own scale
MANY = 1000  # images at once on a GPU, which is done with fewer before the next ones are launched


def most_related(stage: Stage) -> Record:
    """The earlier task whose features classify this task's held-out images best."""
    learner, device = stage.learner, stage.learner.config.device
    records = list(learner.records.values())
    if len(records) == 1:
        return records[0]
    fit, held_out = (part.to(device) for part in (stage.fit, stage.held_out))  # once, not for every record
    best = (math.inf, records[0])
    for record in records:
        network = learner.ready(record.name, device)
        head = network.get_submodule(learner.graph.head.name)
        seen, asked = (_features(network, head, part, record.normalisation, device) for part in (fit, held_out))
        error = _ridge_error(seen, fit.labels, asked, held_out.labels)
        if error < best[0]:
            best = (error, record)
    return best[1]


@torch.inference_mode()
def _features(network: nn.Module, head: nn.Module, part: Part, normalise: Normalisation, device: str) -> Tensor:
    found: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].float()))
    on_gpu = device != "cpu"
    half = torch.autocast("cuda", torch.bfloat16, enabled=on_gpu)  # which is best shows in half precision too
    try:
        with half, evaluating(network):
            for images in part.chunks(MANY if on_gpu else EVALUATION_BATCH):
                x = normalise(images.to(device))
                network(x.to(memory_format=torch.channels_last) if on_gpu and x.ndim == 4 else x)
    finally:
        hook.remove()
    return torch.cat(found)


def _ridge_error(seen: Tensor, labels: Tensor, asked: Tensor, answers: Tensor) -> float:
    """A linear classifier by least squares on standardised features: its squared error where it was not fitted."""
    mean, deviation = seen.mean(0), seen.std(0).clamp_min(1e-6)
    classes = int(labels.max()) + 1
    y, right = (F.one_hot(given.to(seen.device), classes).to(seen.dtype) for given in (labels, answers))
    x = (seen - mean) / deviation
    gram = x.T @ x / len(x) + RIDGE * torch.eye(x.shape[1], device=x.device)
    weights = torch.linalg.solve(gram, x.T @ (y - y.mean(0)) / len(x))
    return float(((asked - mean) / deviation @ weights + y.mean(0) - right).square().sum(1).mean())


@torch.no_grad()
def start_from(stage: Stage, record: Record) -> None:
    """Begin as an earlier task's network: its picks, norms and biases, and nothing new in what its channels read.

    Other frozen kernels start as far below the threshold as its own start above it.
    """
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
    for node in stage.learner.graph.nodes[1:-1]:
        if node.op not in (*BANKED, *NORMS):
            continue
        for key, value in network.layer(node.name).named_parameters():
            if key in ("weight", "bias") and f"{node.name}.{key}" in record.own:
                at = _positions(stage, record, node.name).to(value.device)
                value[at] = record.own[f"{node.name}.{key}"].to(value.device)
    quieten(stage, record, None)


@torch.no_grad()
def quieten(stage: Stage, record: Record, before: Widths | None) -> None:
    """Start new kernels at zero in the channels that the earlier task has; with `before`, those appended since then.

    They learn from there, and until then these channels say what they said to that task.
    """
    network = stage.network
    for name, layer in network.masked().items():
        if layer.weight is None:
            continue
        bank, new = network.banks[name], torch.zeros(layer.trainable.shape, dtype=torch.bool)
        new[_positions(stage, record, name)] = True
        if before is not None:
            rows, columns = bank.view(network.widths, before)
            new[rows[:, None], columns] = False
        layer.weight[new.to(layer.weight.device)] = 0.0


def _positions(stage: Stage, record: Record, name: str) -> Tensor:
    """Where the channels that a task kept lie in the network in training."""
    network, found, first = stage.network, [], 0
    for group in network.channels.output[name].groups:
        found.append(record.kept[group].nonzero().flatten() + first)
        first += network.widths[group]
    return torch.cat(found)
