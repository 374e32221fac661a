"""PackNet beside a computation of its own: which weights are kept, what trains, and what a file has of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grown.config import Recipe
from grown.data.normalisation import measure
from grown.methods.masked.layers import Kernels
from grown.methods.packnet.method import keep_largest
from grown.methods.plain_method import PlainMethod
from grown.train.batches import Batches
from helpers import make_task
from test_masked import convnet
from test_regularised import features, fitted, tiny


def test_the_smallest_of_what_trained_are_pruned_in_each_layer() -> None:
    weight = torch.tensor([[0.5, -3.0, 0.1], [-0.2, 9.0, 0.4]])
    trainable = torch.tensor([[True, True, True], [True, False, True]])  # 9.0 is an earlier task's
    made = Kernels(None, trainable, torch.zeros(2, 3))
    keep_largest(made, weight, 0.6)  # three of five go: 0.1, -0.2, 0.4
    assert made.trainable is not None
    assert made.trainable.tolist() == [[True, True, False], [False, False, False]]
    keep_largest(made, weight, 0.99)  # one of two at least stays
    assert made.trainable.tolist() == [[False, True, False], [False, False, False]]
    nothing = Kernels(None, torch.zeros(2, 3, dtype=torch.bool), weight)
    keep_largest(nothing, weight, 0.6)
    assert nothing.trainable is not None
    assert not bool(nothing.trainable.any())


def _descend(network: Any, batches: Batches, epochs: int, mask: np.ndarray) -> None:
    """Gradient descent by hand; of the kernels only what the mask has."""
    for epoch in range(1, epochs + 1):
        batches.begin(epoch)
        for step in range(batches.steps):
            batch = batches.at(step)
            network.zero_grad()
            F.cross_entropy(network(batch.x), batch.labels).backward()
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    change = 0.1 * parameter.grad
                    parameter -= change * torch.from_numpy(mask) if name == "hidden.weight" else change


def test_two_tasks_are_packed_as_by_hand() -> None:
    recipe = Recipe(epochs=4, batch=4, rate=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
    made = tiny("packnet", recipe=recipe, packnet_prune=0.5, packnet_retrain=0.5)
    owner, kernel = np.zeros((4, 3), dtype=int), np.zeros((4, 3), dtype=np.float32)
    for number in (1, 2):
        task = features(f"t{number}", seed=number)
        part = fitted(task, made.config)
        made._check([task])
        network = made._begin(task).requires_grad_(True)
        weight = network.get_parameter("hidden.weight")
        if number == 2:
            assert np.array_equal(weight.detach().numpy(), kernel)  # what was pruned starts at 0
        free = owner == 0
        _descend(network, Batches(part, measure(part), recipe, "cpu", 0, task.name, "plain"), 4, free)
        order = sorted(np.flatnonzero(free), key=lambda place: -abs(weight.detach().numpy().flat[place]))
        kept = order[: len(order) - len(order) // 2]
        owner.flat[kept] = number
        with torch.no_grad():
            weight *= torch.from_numpy(owner > 0)
        _descend(network, Batches(part, measure(part), recipe, "cpu", 0, task.name, "retrain"), 2, owner == number)
        report = made.learn(task)
        assert [(stage.name, stage.epochs) for stage in report.stages] == [("train", 4), ("retrain", 2)]
        assert report.stages[1].val == report.val
        kernel = made.network(task.name).state_dict()["hidden.weight"].numpy()
        assert np.allclose(kernel, weight.detach().numpy(), atol=1e-5)
        assert np.array_equal(made._owner.view(4, 3).numpy(), owner)
        assert report.new_kernels == {"released": 0, "grown": int((owner == number).sum())}
    assert [int((owner == number).sum()) for number in range(3)] == [3, 6, 3]
    first = made.network("t1").state_dict()["hidden.weight"].numpy()
    assert np.array_equal(first != 0, owner == 1)
    assert np.array_equal(first, kernel * (owner == 1))


def test_weight_decay_and_momentum_do_not_reach_what_is_frozen() -> None:
    made = tiny("packnet", recipe=Recipe(epochs=6, batch=4, rate=0.3, weight_decay=0.1))
    made.learn(features("t0"))
    before = made.network("t0").state_dict()["hidden.weight"]
    made.learn(features("t1", seed=1))
    after = made.network("t1").state_dict()["hidden.weight"]
    assert torch.equal(after[before != 0], before[before != 0])
    assert int((after != 0).sum()) > int((before != 0).sum())


def test_a_network_without_room_goes_on_with_what_is_there() -> None:
    said: list[str] = []

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            said.append(event["text"])

    made = convnet("packnet", packnet_prune=0.0, recipe=Recipe(epochs=8, batch=16, rate=0.05))
    made.observer = observe
    first = made.learn(make_task("t0"))
    assert not said
    second = made.learn(make_task("t1", seed=1))
    assert len(said) == 1
    assert "t1: no free weight is left in " in said[0]
    assert first.new_kernels["grown"] == PlainMethod._new_kernels(made, is_new=True)
    assert second.new_kernels == {"released": 0, "grown": 0}
    kernels: list[dict[str, Tensor]] = [made._kernels_of(task) for task in made.tasks]
    assert all(torch.equal(kernels[0][key], kernels[1][key]) for key in kernels[0])
    assert second.val > 60.0  # norms, biases and head alone


def test_a_file_has_owned_weights_once_and_owners_in_few_bits() -> None:
    made = convnet("packnet")
    for number in range(3):
        size = made.learn(make_task(f"t{number}", seed=number)).size
        state = made.state().tensors
        owned = int((made._owner > 0).sum())
        assert state["shared/kernels"].shape == (owned,)
        assert size.parameters["kernels"] == owned
        planes = (number + 1).bit_length()  # one owner and nobody are a bit, two or three are two
        assert state["shared/owners"].shape == (planes, (made._elements + 7) // 8)
        free = 1 - owned / made._elements
        assert abs(free - 0.6 ** (number + 1)) < 0.02
