"""WSN beside a computation of its own, and its coded masks under bad input."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
import torch
import torch.nn.functional as F

from grown import seeds
from grown.config import Recipe
from grown.data.normalisation import measure
from grown.errors import FileError
from grown.methods.masked import MaskedMethod
from grown.methods.masked.masks import Largest
from grown.methods.wsn import coding
from grown.nn import bits
from grown.train.batches import Batches
from helpers import make_task
from test_masked import convnet
from test_regularised import features, fitted, tiny


def test_the_largest_scores_of_a_layer_are_on_and_gradients_pass_straight_through() -> None:
    mask = Largest(torch.tensor([[0.3, -0.2, 0.1], [0.05, -0.9, 0.2]]), 0.5)
    assert mask().tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    assert mask.picked().tolist() == [[True, False, True], [False, False, True]]
    slopes = torch.arange(6.0).view(2, 3)
    (mask() * slopes).sum().backward()
    assert torch.equal(mask.scores.grad, slopes)  # type: ignore[arg-type]
    assert Largest(torch.randn(5), 1.0)().tolist() == [1.0] * 5
    assert int(Largest(torch.randn(5), 0.02).picked().sum()) == 1  # one weight at least


def test_two_tasks_are_learned_as_by_hand() -> None:
    recipe = Recipe(epochs=2, batch=4, rate=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", score_rate=0.05)
    made = tiny("wsn", recipe=recipe)
    used, bank = torch.zeros(4, 3, dtype=torch.bool), torch.zeros(4, 3)
    for number in range(2):
        task = features(f"t{number}", seed=number)
        part = fitted(task, made.config)
        made._check([task])
        network = made._begin(task).requires_grad_(True)
        weight = network.get_parameter("hidden.weight").detach().clone()
        assert torch.equal(weight[used], bank[used])
        draw = seeds.generator(0, "scores", task.name, "hidden.weight")
        scores = torch.empty(4, 3).uniform_(-0.1, 0.1, generator=draw)
        steps = torch.optim.Adam([scores], lr=0.05)
        batches = Batches(part, measure(part), recipe, "cpu", 0, task.name, "plain")
        for epoch in (1, 2):
            batches.begin(epoch)
            for step in range(batches.steps):
                batch = batches.at(step)
                on = torch.zeros(12)
                on[scores.flatten().argsort(descending=True)[:6]] = 1.0
                network.get_parameter("hidden.weight").data = weight * on.view(4, 3)
                network.zero_grad()
                F.cross_entropy(network(batch.x), batch.labels).backward()
                slope = network.get_parameter("hidden.weight").grad
                scores.grad = slope * weight
                steps.step()
                weight -= 0.1 * slope * on.view(4, 3) * ~used
                with torch.no_grad():
                    for name, parameter in network.named_parameters():
                        if name != "hidden.weight":
                            parameter -= 0.1 * parameter.grad
        on = torch.zeros(12, dtype=torch.bool)
        on[scores.flatten().argsort(descending=True)[:6]] = True
        on = on.view(4, 3)
        report = made.learn(task)
        found = made.network(task.name).state_dict()["hidden.weight"]
        assert torch.equal(found != 0, on)
        assert torch.allclose(found, weight * on, atol=1e-5)
        assert report.new_kernels == {"released": 0, "grown": int((on & ~used).sum())}
        bank = torch.where(on, found, bank)
        used |= on
    assert torch.equal(made._used().view(4, 3), used)
    assert 6 < int(used.sum()) < 12  # the second task has weights of the first and of its own
    assert torch.equal(made.state().tensors["shared/kernels"], bank[used])


def test_a_file_has_what_some_task_uses_and_masks_in_few_bytes() -> None:
    made = convnet("wsn", wsn_density=0.1)
    for number in range(2):
        size = made.learn(make_task(f"t{number}", seed=number)).size
    union = sum(((kernel != 0) | made.network("t0").state_dict()[key].ne(0)).sum() for key, kernel in _kernels(made))
    assert size.parameters["kernels"] == int(union) < 0.2 * made._elements
    for number in (1, 2):
        assert len(made.state().tensors[f"task/{number}/picked"]) < 0.65 * bits.packed_length(made._elements)


def _kernels(made: MaskedMethod) -> list[tuple[str, torch.Tensor]]:
    network = made.network("t1").state_dict()
    return [(key, network[key]) for key in made._kernel_shapes]


@pytest.mark.parametrize("density", [0.02, 0.1, 0.5, 0.9, 1.0])
def test_masks_are_coded_near_their_entropy_and_come_back(density: float) -> None:
    flags = torch.rand(40_001, generator=torch.Generator().manual_seed(0)) < density
    packed = bits.pack(flags)
    coded = coding.shorten(packed)
    entropy = sum(-p * torch.tensor(p).log2().item() for p in (density, 1 - density) if 0 < p < 1)
    assert len(coded) <= len(packed) * min(1.0, 1.04 * entropy + 0.02 + 1 / 8 * (density in (0.02, 1.0)))
    assert torch.equal(coding.restore("m", coded, len(packed)), packed)


def test_codes_of_a_stranger_take_no_more_memory_than_the_mask() -> None:
    def coded(data: bytes) -> torch.Tensor:
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        return torch.tensor(list(coder.compress(data) + coder.flush()), dtype=torch.uint8)

    good = coded(bytes(1000))
    assert torch.equal(coding.restore("m", good, 1000), torch.zeros(1000, dtype=torch.uint8))
    bomb = coded(bytes(50_000_000))
    tracemalloc.start()
    for strange, length in (
        (bomb[:90_000], 100_000),
        (bomb, 100_000),
        (good, 999),
        (good, 1001),
        (good[:-1], 1000),
        (torch.cat([good, good]), 1000),
        (torch.full((20,), 255, dtype=torch.uint8), 1000),
        (torch.zeros(0, dtype=torch.uint8), 1000),
        (coded(bytes(range(256)) * 4)[:-3], 1024),
        (torch.zeros(1001, dtype=torch.uint8), 1000),
    ):
        with pytest.raises(FileError, match=r"^m is not"):
            coding.restore("m", strange, length)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
