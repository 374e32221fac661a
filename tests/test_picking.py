"""Piggyback, KSM and SupSup: masks on a network that is frozen, each beside a computation of its own."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import grown
from grown.config import Recipe
from grown.data.normalisation import measure
from grown.io import container
from grown.methods.ksm.mask import SoftKernels, over
from grown.methods.masked import MaskedMethod
from grown.methods.masked.masks import Threshold
from grown.methods.supsup.bank import signed_constants
from grown.methods.verify import verify
from grown.nn import bits
from grown.train.batches import Batches
from helpers import Branchy, make_task
from test_masked import convnet
from test_regularised import features, fitted, tiny

STEADY = Recipe(epochs=2, batch=4, rate=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", score_rate=0.05)


def kernels(made: MaskedMethod, task: str) -> dict[str, torch.Tensor]:
    state = made.network(task).state_dict()
    return {key: state[key] for key in made._kernel_shapes}


@pytest.mark.parametrize("name", ["piggyback", "ksm"])
def test_the_backbone_is_scratchs_first_network(name: str) -> None:
    scratch, made = (convnet(each, kernel_format="bf16", refit=True) for each in ("scratch", name))
    for learner in (scratch, made):
        learner.learn(make_task("t0"))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(scratch.network("t0")(x), made.network("t0")(x))
    assert made.size().size_x == 1.0


@pytest.mark.parametrize("name", ["piggyback", "ksm", "supsup"])
def test_a_later_task_depends_on_no_other_later_one(name: str) -> None:
    answers = []
    for between in ([], ["t1"]):
        made = convnet(name)
        for task in ("t0", *between, "t2"):
            report = made.learn(make_task(task, seed=ord(task[1])))
        answers.append(made.network("t2")(torch.ones(2, 1, 8, 8)))
        assert report.new_kernels == {"released": 0, "grown": 0}
    assert torch.equal(*answers)


# --- Piggyback ----------------------------------------------------------------------------------------------------


def test_a_weight_is_used_where_its_real_mask_is_above_the_threshold() -> None:
    mask = Threshold(torch.tensor([0.01, 0.005, -1.0, 0.0051]), 0.005)
    assert mask().tolist() == [1.0, 0.0, 0.0, 1.0]
    assert mask.picked().tolist() == [True, False, False, True]
    (mask() * torch.arange(4.0)).sum().backward()
    assert mask.scores.grad.tolist() == [0.0, 1.0, 2.0, 3.0]  # type: ignore[union-attr]


def test_piggyback_learns_its_masks_as_by_hand() -> None:
    made = tiny("piggyback", recipe=STEADY, piggyback_rate=3e-3)
    made.learn(features("t0"))
    backbone = made.network("t0").state_dict()["hidden.weight"]
    task = features("t1", seed=1)
    part = fitted(task, made.config)
    network = made._begin(task).requires_grad_(True)
    assert torch.equal(network.get_parameter("hidden.weight"), backbone)
    real = torch.full((4, 3), 0.01)
    steps = torch.optim.Adam([real], lr=3e-3)
    batches = Batches(part, measure(part), STEADY, "cpu", 0, "t1", "plain")
    for epoch in (1, 2):
        batches.begin(epoch)
        for step in range(batches.steps):
            batch = batches.at(step)
            network.get_parameter("hidden.weight").data = backbone * (real > 0.005)
            network.zero_grad()
            F.cross_entropy(network(batch.x), batch.labels).backward()
            real.grad = network.get_parameter("hidden.weight").grad * backbone
            steps.step()
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    if name != "hidden.weight":
                        parameter -= 0.1 * parameter.grad
    made.learn(task)
    found = made.network("t1").state_dict()
    assert torch.equal(found["hidden.weight"], backbone * (real > 0.005))
    assert 0 < int((real > 0.005).sum()) < 12
    assert torch.allclose(found["out.weight"], network.get_parameter("out.weight"), atol=1e-5)


def test_a_mask_is_a_bit_a_weight_and_the_backbone_has_none() -> None:
    made = convnet("piggyback", piggyback_rate=5e-3)
    for number in range(2):
        made.learn(make_task(f"t{number}", seed=number))
    tensors = made.state().tensors
    assert "task/1/picked" not in tensors
    assert tensors["task/2/picked"].shape == (bits.packed_length(made._elements),)
    first, second = kernels(made, "t0"), kernels(made, "t1")
    for key, kernel in first.items():
        assert bool(((second[key] == kernel) | (second[key] == 0)).all())
    assert 0 < sum(int((second[key] == 0).sum()) for key in first) < made._elements
    mask = torch.cat([(second[key] != 0).flatten() for key in first])
    assert torch.equal(bits.unpack(tensors["task/2/picked"], made._elements), mask)


# --- KSM ----------------------------------------------------------------------------------------------------------


def test_the_soft_mask_is_the_formula() -> None:
    scores = [0.02, 0.0, -0.01, 0.006]
    mask = SoftKernels(torch.tensor([scores]), torch.Size((1, 4)))
    by_hand = [1.0, 0.5 * 0.01 / 0.03, 0.0, 1.0]  # open gates, and half the score between the least and the largest
    assert mask().tolist()[0] == pytest.approx(by_hand, rel=1e-6)
    assert mask.picked().tolist() == [[True, False, False, True]]
    slopes = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    (mask() * slopes).sum().backward()
    gates = [1 / (1 + math.exp(-12 * (m - 0.005))) for m in scores]
    expected = [12 * gate * (1 - gate) * slope for gate, slope in zip(gates, slopes[0].tolist(), strict=True)]
    assert mask.scores.grad[0].tolist() == pytest.approx(expected, rel=1e-5)  # type: ignore[index]


def test_a_factor_is_a_kernels_in_every_kind_of_layer() -> None:
    factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert over(factors, torch.Size((2, 2, 3, 3))).expand(2, 2, 3, 3)[1, 0].unique().tolist() == [3.0]
    assert over(factors, torch.Size((2, 6))).tolist() == [[1, 1, 1, 2, 2, 2], [3, 3, 3, 4, 4, 4]]
    assert over(factors, torch.Size((2, 2))) is factors


def test_ksm_multiplies_whole_kernels_and_counts_what_it_multiplies_by() -> None:
    torch.manual_seed(0)
    made = grown.METHODS["ksm"](Branchy(), convnet("ksm", ksm_rate=2e-3).config)
    for number in range(2):
        size = made.learn(make_task(f"t{number}", seed=number)).size
    first, second = kernels(made, "t0"), kernels(made, "t1")
    soft = 0
    for key, extent in made._extents.items():
        ratio = (second[key] / first[key]).reshape(*extent, -1)
        assert float((ratio.amax(-1) - ratio.amin(-1)).max()) < 1e-5, key
        factor = ratio.mean(-1)
        picked = (factor - 1).abs() < 1e-5
        assert bool((picked | (factor < 0.5 + 1e-5)).all())
        soft += int((~picked).sum())
    every = sum(math.prod(extent) for extent in made._extents.values())
    assert 0 < soft < every
    assert size.bytes["picked_bits"] == bits.packed_length(every) + 4 * soft
    assert size.size_x == 1.0


# --- SupSup -------------------------------------------------------------------------------------------------------


def test_the_bank_is_signed_constants_that_a_seed_stands_for() -> None:
    shape = torch.Size((5, 3, 3, 3))
    bank = signed_constants(7, "stem.weight", shape)
    assert bank.unique().tolist() == pytest.approx([-math.sqrt(2 / 27), math.sqrt(2 / 27)])
    assert bank.dtype == torch.float32
    stream = hashlib.shake_256(b"grown/bank/7/stem.weight").digest(17)
    by_hand = [(stream[place // 8] >> place % 8) & 1 for place in range(135)]
    assert (bank.flatten() > 0).int().tolist() == by_hand
    assert 40 < sum(by_hand) < 95
    # For ever: a file has the seed alone.
    assert hashlib.sha256(bank.numpy().tobytes()).hexdigest()[:16] == "7634627b2c767a99"
    assert not torch.equal(signed_constants(8, "stem.weight", shape), bank)
    assert not torch.equal(signed_constants(7, "side.weight", shape), bank)


def test_supsup_has_no_kernels_in_its_file_and_the_same_ones_in_another_process(tmp_path: Path) -> None:
    made = convnet("supsup")
    for number in range(2):
        report = made.learn(make_task(f"t{number}", seed=number))
    made.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    assert not any(name.endswith("kernels") for name in tensors)
    assert (report.size.size_x, report.size.bytes["kernels"]) == (0.0, 0)
    for task in made.tasks:
        for key, kernel in kernels(made, task).items():
            size = math.sqrt(2 / kernel[0].numel())
            assert kernel.abs().unique().tolist() == pytest.approx([0.0, size])
            assert int((kernel != 0).sum()) == max(1, round(0.5 * kernel.numel())), key
    program = (
        f"import grown; print(repr(grown.load({str(tmp_path / 'm')!r}).network('t0').state_dict()['0.weight'][0]))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == repr(made.network("t0").state_dict()["0.weight"][0]) + "\n"
    before = made.network("t0")(torch.ones(1, 1, 8, 8))
    again = grown.load(tmp_path / "m")
    again.configure(again.config.replace(seed=5, supsup_density=0.2))
    again.learn(make_task("t2"))
    assert torch.equal(again.network("t0")(torch.ones(1, 1, 8, 8)), before)
    container.save(tmp_path / "m", tensors, {**meta, "bank_seed": meta["bank_seed"] + 1})
    assert any("its logits differ" in line for line in verify(tmp_path / "m").differences)


def test_supsup_trains_no_kernel() -> None:
    made = tiny("supsup", recipe=STEADY)
    made.learn(features("t0"))
    (training,) = made._trainings(features("t1", seed=1))
    assert torch.equal(training.kernels["hidden.weight"], signed_constants(made._bank_seed, "hidden.weight", (4, 3)))
    made.learn(features("t1", seed=1))
    masks = [made.network(task).state_dict()["hidden.weight"] != 0 for task in made.tasks]
    assert [int(mask.sum()) for mask in masks] == [6, 6]
    assert not torch.equal(*masks)
