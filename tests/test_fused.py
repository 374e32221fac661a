"""Each fused kernel computes what the plain lines compute that it stands for.

On a GPU as it is chosen and runs there; elsewhere on small tensors by Triton's interpreter, which `conftest.py` asks
for. What only a GPU has (streams, captured steps) is in test_gpu.py.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton", reason="triton comes with a CUDA build of torch, or with grown[dev] on Linux")

from grown.methods.masked.layers import Kernels
from grown.methods.masked.masks import Largest, Threshold
from grown.nn import accelerate, fused, fusing, masks
from helpers import near

LAST = torch.channels_last
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def sizes(large: list, small: list) -> list:
    """What a GPU does in no time an interpreter takes minutes for; the small ones also end amid a tile."""
    return [*small, *large] if ON_GPU else small


@pytest.mark.parametrize("behind", ["nothing", "relu", "add and relu"])
@pytest.mark.parametrize(
    "shape", sizes([(64, 32, 32), (64, 40, 7), (64, 256, 2), (2, 200, 1)], [(8, 3, 16), (5, 40, 7), (2, 70, 1)])
)
def test_norm_and_relu(shape: tuple[int, int, int], behind: str) -> None:
    count, channels, side = shape
    torch.manual_seed(0)
    start = (torch.randn(count, channels, side, side, device=DEVICE) * 2 + 1).to(memory_format=LAST)
    beside, slope = torch.randn_like(start), torch.randn_like(start)
    found = []
    for way in ("plain", "fused"):
        x = start.clone(memory_format=torch.preserve_format).requires_grad_()
        added = beside.clone(memory_format=torch.preserve_format).requires_grad_() if behind == "add and relu" else None
        norm = nn.BatchNorm2d(channels).to(DEVICE)
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, channels))
            norm.bias.copy_(torch.linspace(1, -1, channels))
        relu = behind != "nothing"
        if way == "plain":
            y = norm(x) + (0.0 if added is None else added)
            y = F.relu(y) if relu else y
        else:
            y = fused.norm_relu(x, norm, added, relu=relu)
        y.backward(slope)
        grads = [value.grad for value in (x, added, norm.weight, norm.bias) if value is not None]
        found.append([y, *grads, norm.running_mean, norm.running_var])
    for one, other in zip(*found, strict=True):
        near(other, one, 1e-3)


@pytest.mark.parametrize("shape", sizes([(64, 32, 32, 32)], [(3, 70, 9, 7), (2, 3, 4, 4)]))
@pytest.mark.parametrize("window", [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 2), (1, 1)),
                                    ((4, 4), (4, 4), (0, 0)), ((2, 2), (3, 3), (0, 0))])  # fmt: skip
def test_pools(shape: tuple[int, ...], window: tuple[tuple[int, int], ...]) -> None:
    """Equal values are many after a ReLU: the first one gets the gradient, as in PyTorch."""
    torch.manual_seed(0)
    start = torch.randn(shape, device=DEVICE).relu().round(decimals=1).bfloat16().to(memory_format=LAST)
    start[0, 0, 1, 1] = float("nan")
    found = []
    for pool in (F.max_pool2d, fused.max_pool):
        x = start.clone(memory_format=torch.preserve_format).requires_grad_()
        y = pool(x, *window)
        y.backward((torch.arange(y.numel(), device=DEVICE) % 7).view(y.shape).bfloat16())
        found.append([y, x.grad])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        near(other.nan_to_num(), one.nan_to_num(), 1e-2)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("size", [9, 4, 1])
@pytest.mark.parametrize("shape", sizes([(100, 20, 32, 32)], [(3, 70, 9, 7), (2, 3, 4, 4)]))
def test_local_response_norm(shape: tuple[int, ...], size: int, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large alphas, so that the neighbours count; the gradient of the gates too."""
    torch.manual_seed(0)
    start = torch.randn(shape, device=DEVICE).to(memory_format=LAST)
    slope, norm = torch.randn_like(start), nn.LocalResponseNorm(size, alpha=2.0, beta=0.75, k=1.5)
    found = []
    for way in ("plain", "fused"):
        x = start.clone(memory_format=torch.preserve_format).requires_grad_()
        gate = (torch.arange(shape[1], device=DEVICE) % 3 > 0).float().requires_grad_() if gated else None
        with monkeypatch.context() as patch:
            if way == "plain":
                patch.setattr(fusing, "_kernels", lambda _: None)
                patch.setattr(fusing, "_banded", lambda _: None)
            elif not ON_GPU:
                patch.setattr(fusing, "_kernels", lambda _: fused)
            assert way == "plain" or fusing._kernels(x) is not None
            y = fusing.lrn(x, norm, gate)
        y.backward(slope)
        found.append([y, x.grad, *([gate.grad] if gate is not None else [])])
    for one, other in zip(*found, strict=True):
        near(other, one, 1e-5)


@pytest.mark.parametrize("parts", ["both", "frozen", "trainable"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", sizes([(64, 64, 3), (16, 520, 1)], [(40, 3, 3), (9, 20, 3), (2, 300, 1)]))
def test_masked_kernels(shape: tuple[int, int, int], gated: bool, parts: str) -> None:
    outputs, inputs, k = shape
    torch.manual_seed(0)
    share = {"both": 0.5, "frozen": 1.1, "trainable": -0.1}[parts]
    frozen_at = torch.rand(outputs, inputs, device=DEVICE) < share
    base = torch.randn(outputs, inputs, k, k, device=DEVICE).to(memory_format=LAST)
    frozen = base * frozen_at[..., None, None] if parts != "trainable" else None
    codes = torch.randint(0, 3, (outputs, inputs), device=DEVICE, dtype=torch.uint8)
    slope = torch.randn_like(base)
    found = []
    for way in ("plain", "fused"):
        weight = (base * ~frozen_at[..., None, None]).requires_grad_() if parts != "frozen" else None
        scores = torch.linspace(-1, 1, outputs * inputs, device=DEVICE).view(outputs, inputs).requires_grad_()
        gate = (torch.arange(inputs, device=DEVICE) % 3 > 0).float().requires_grad_() if gated else None
        trainable = (~frozen_at).float()
        if way == "plain":
            mask = masks.hard_mask(scores, codes == 2, (codes == 1).float())
            out = masks.masked_kernels(frozen, weight, mask if gate is None else mask * gate, trainable)
        else:
            out = fused.fused_kernels(frozen, weight, scores, codes, trainable, gate, torch.float32)
        out.backward(slope)
        found.append([out.detach(), *(t.grad for t in (weight, scores, gate) if t is not None)])
    assert torch.equal(found[0][0], found[1][0])
    for one, other in zip(*found, strict=True):
        near(other, one, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("kind", ["threshold", "largest", "none"])
@pytest.mark.parametrize("shape", sizes([(64, 64, 3, 3)], [(40, 3, 3, 3), (10, 520)]))
def test_masked_elements(
    shape: tuple[int, ...], kind: str, learns: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "none" and not learns:
        return
    torch.manual_seed(0)
    base = torch.randn(shape, device=DEVICE)
    base = base.to(memory_format=LAST) if base.ndim == 4 else base
    frozen, free, slope = torch.randn_like(base), torch.rand_like(base) < 0.5, torch.randn_like(base).to(dtype)
    start = torch.randn_like(base)
    found = []
    for way in ("plain", "fused"):
        mask = {"threshold": Threshold(start.clone(), 0.1), "largest": Largest(start.clone(), 0.3), "none": None}[kind]
        made = (Kernels(mask, free, frozen) if learns else Kernels(mask)).to(DEVICE)
        weight = base.clone(memory_format=torch.preserve_format).requires_grad_(learns)
        half = torch.autocast("cuda", torch.bfloat16, enabled=ON_GPU and dtype == torch.bfloat16)
        with half, monkeypatch.context() as patch:
            if way == "plain":
                patch.setattr(accelerate, "fused_for", lambda *_: None)
            elif not ON_GPU:
                patch.setattr(accelerate, "fused_for", lambda *_: fused)
                patch.setattr(accelerate, "conv_precision", lambda: dtype)
            out = made(weight)
        assert way == "plain" or out.dtype == dtype
        out.to(dtype).backward(slope)
        scores = [mask.scores.grad] if mask is not None else []
        found.append([out.detach().to(dtype), *scores, *([weight.grad] if learns else [])])
    for one, other in zip(*found, strict=True):
        if dtype == torch.float32 or ON_GPU:
            assert torch.equal(one, other)
        else:  # the interpreter cuts off what a GPU rounds
            assert torch.equal(one == 0, other == 0)
            near(other, one, 1e-2)


@pytest.mark.parametrize("size", sizes([70_001, 2_359_296], [1, 255, 2048, 5_001]))
@pytest.mark.parametrize("kind", ["uniform", "ties", "negative"])
def test_the_score_at_a_rank(size: int, kind: str) -> None:
    torch.manual_seed(0)
    scores = torch.rand(size, device=DEVICE) * 0.2 - 0.1
    scores = {"uniform": scores, "ties": (scores * 20).round(), "negative": scores - 1}[kind]
    ordered = scores.sort().values
    for rank in {1, (size + 1) // 2, size}:
        assert float(fused.smallest(scores, rank)) == float(ordered[rank - 1])
