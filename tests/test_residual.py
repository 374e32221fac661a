"""Residual networks: channels that meet in an addition grow, are picked and are cut together, shortcuts among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import grown
from grown.bench.presets import benchmark
from grown.config import Recipe
from grown.models import backbone
from grown.nn.groups import find_channels
from grown.nn.trace import trace
from helpers import make_task, quick, shake

SHORTCUTS = ("6.shortcut.0", "8.shortcut.0", "10.shortcut.0")  # of ResNet18: strided 1x1 convolutions


def test_resnet18_for_84_pixels() -> None:
    network = backbone("resnet18", image=84)
    stem, pool = network[0], network[3]
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    assert (type(pool), pool.kernel_size) == (nn.MaxPool2d, 2)
    assert isinstance(network[-3], nn.AdaptiveAvgPool2d)
    assert sum(p.numel() for p in network.parameters() if p.ndim == 4) == 11_159_232
    assert benchmark("miniimagenet-20").base_parameters == 11_159_232
    assert grown.Learner(network, input_shape=(3, 84, 84)).base_parameters == 11_159_232
    with torch.no_grad():
        assert network[:12].eval()(torch.zeros(1, 3, 84, 84)).shape == (1, 512, 6, 6)


def test_what_is_added_is_one_group() -> None:
    channels = find_channels(trace(backbone("resnet18", width=0.1), (3, 84, 84)))

    def groups(*names: str) -> set[tuple[int, ...]]:
        return {channels.output[name].groups for name in names}

    stages = [
        groups("0", "4.body.3", "5.body.3"),
        *(groups(f"{a}.body.3", f"{a}.shortcut.0", f"{a + 1}.body.3") for a in (6, 8, 10)),
    ]
    assert [len(stage) for stage in stages] == [1, 1, 1, 1]
    assert len(set.union(*stages)) == 4
    inner = [groups(f"{a}.body.0") for a in range(4, 12)]
    assert len(set.union(*inner, *stages)) == 12  # each block's inside is its own


def learn(name: str, side: int, width: float) -> tuple[grown.Learner, list[dict[str, torch.Tensor]]]:
    """Three tasks by `learn`, the second and third with an expansion that is kept whatever it brings."""
    torch.manual_seed(0)
    recipe = Recipe(epochs=1, batch=8, zoom=0.5, flip=True, colour=0.2)
    config = quick(
        recipe=recipe, seed_size=0.5, max_size=4.0, task_size=1.0, step_size=0.5, growth="open", target=100.0,
        margin=-1.0, expansions=1, refit=True, trial=False, holdout=0.3,
    )  # fmt: skip
    learner = grown.Learner(backbone(name, width=width), config)
    x, history = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1)), []
    for number in range(3):
        report = learner.learn(make_task(f"t{number}", classes=2, shape=(side, side, 3), each=8, seed=number))
        assert report.grew
        with torch.inference_mode():
            history.append({task: learner.extract(task)(x) for task in learner.tasks})
    return learner, history


@pytest.mark.parametrize(("name", "side", "width"), [("resnet18", 84, 0.08), ("resnet50", 24, 0.06)])
def test_tasks_grow_and_stay_as_they_were(name: str, side: int, width: float, tmp_path: Path) -> None:
    learner, history = learn(name, side, width)
    for then in history:
        for task, logits in then.items():
            assert torch.equal(logits, history[-1][task])
    learner.save(tmp_path / "model")
    again = grown.load(tmp_path / "model")
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert all(torch.equal(again.extract(task)(x), logits) for task, logits in history[-1].items())
    shortcuts = [bank for key, bank in learner.banks.items() if "shortcut" in key]
    assert len(shortcuts) == (3 if name == "resnet18" else 4)
    for bank in shortcuts:
        assert {1, 2, 3} <= set(bank.owner.unique().tolist())  # kernels of every task
    for task in ("t0", "t2"):
        plain = learner.extract(task)
        for body, shortcut in ((plain.get_submodule(f"{a}.body.3"), f"{a}.shortcut.0") for a in (6, 8)):
            if name == "resnet18":
                assert body.out_channels == plain.get_submodule(shortcut).out_channels


def test_shortcuts_have_masks_and_a_channel_is_cut_only_with_its_whole_group() -> None:
    torch.manual_seed(0)
    learner = grown.Learner(backbone("resnet18", width=0.1), quick(seed_size=0.5, growth="open"))
    shape = (84, 84, 3)
    learner.learn(make_task("t0", shape=shape, each=4))
    stage = learner.open(make_task("t1", shape=shape, each=4))
    masked = stage.network.masked()
    assert set(SHORTCUTS) <= set(masked)
    with torch.no_grad():
        for layer in masked.values():
            layer.scores.fill_(1.0)
        # Of stage two's group, channel 0 loses its kernels in two of three producers; of stage three's, in all.
        for producer in ("6.body.3", "6.shortcut.0", "8.body.3", "8.shortcut.0", "9.body.3"):
            stage.network.layer(producer).scores[0] = -1.0
    wide = {name: learner.widths[learner.channels.output[name].groups[0]] for name in SHORTCUTS}
    settled = stage.settle()
    for name, cut in zip(SHORTCUTS, (0, 1, 0), strict=True):
        assert settled.network.get_submodule(name).out_channels == wide[name] - cut
    with torch.no_grad():
        x = torch.randn(2, 3, 84, 84)
        stage.network.eval()
        assert torch.allclose(stage.network(x), settled.network(x), rtol=1e-4, atol=1e-4)
    stage.commit(settled)
    record = learner.records["t1"]
    assert not bool(record.active["8.shortcut.0"][0].any())
    assert bool(record.active["8.shortcut.0"][1:].all())


def test_shaken_masks_come_out_of_residual_groups_bit_for_bit() -> None:
    torch.manual_seed(0)
    config = quick(seed_size=0.5, max_size=4.0, task_size=1.0, step_size=0.4, growth="open", holdout=0.3)
    learner = grown.Learner(backbone("resnet50", width=0.05), config)
    x = torch.randn(2, 3, 84, 84)
    for number in range(2):
        stage = learner.open(make_task(f"t{number}", classes=2, shape=(84, 84, 3), each=4))
        shake(stage, seed=number, steps=1)
        settled = stage.settle()
        stage.commit(settled)
        with torch.inference_mode():
            assert torch.equal(settled.network(x), learner.extract(f"t{number}")(x))
