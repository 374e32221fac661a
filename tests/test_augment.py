"""What is done to images on the device, and what of it the labels learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from grown.config import Recipe
from grown.data.normalisation import Normalisation, measure
from grown.data.part import Part
from grown.errors import ConfigError
from grown.train import looks, policy
from grown.train.batches import Batches
from helpers import make_task

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def part(count: int = 32, size: int = 12) -> Part:
    draw = torch.Generator().manual_seed(0)
    return Part(
        torch.randint(1, 256, (count, 3, size, size), generator=draw, dtype=torch.uint8), torch.arange(count) % 5
    )


def test_cutout_blanks_one_square() -> None:
    batches = Batches(part(), PLAIN, Recipe(batch=32, cutout=4), "cpu", 0)
    batches.begin(1)
    x = batches.at(0).x
    blank = (x == 0).all(1)
    counts = blank.flatten(1).sum(1)
    assert int(counts.max()) == 16
    assert int(counts.min()) >= 4  # at a corner
    for image in blank:
        rows, columns = image.any(1).nonzero().flatten(), image.any(0).nonzero().flatten()
        assert bool(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all())


def test_cutmix_fills_a_box_from_others_and_says_how_much() -> None:
    source = part()
    batches = Batches(source, PLAIN, Recipe(batch=32, cutmix=1.0, epochs=10), "cpu", 0)
    whole = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    seen = 0
    for epoch in range(1, 9):
        batches.begin(epoch)
        whole.begin(epoch)
        mixed, plain = batches.at(0), whole.at(0)
        assert plain.others is None
        assert torch.equal(mixed.labels, plain.labels)
        changed = (mixed.x != plain.x).any(1).float().mean()
        assert mixed.others is not None
        share = mixed.share
        assert share is not None
        assert float(changed) <= float(share) + 1e-6
        if float(share) > 0.1:
            seen += 1
            assert float(changed) > 0.5 * float(share)
    assert seen > 3
    batches.begin(10)
    assert float(batches.at(0).share) == 0.0  # type: ignore[arg-type]


def test_a_whole_epoch_at_once_is_its_batches() -> None:
    recipe = Recipe(batch=8, crop=2, flip=True, cutout=4, policy="trivial", cutmix=0.8, epochs=10)
    batches = Batches(part(), PLAIN, recipe, "cpu", 0)
    batches.begin(3)
    whole = batches.whole()
    single = [batches.at(step) for step in range(batches.steps)]
    assert torch.equal(whole.x, torch.cat([batch.x for batch in single]))
    assert torch.equal(whole.labels, torch.cat([batch.labels for batch in single]))
    assert torch.equal(whole.others, torch.cat([batch.others for batch in single]))  # type: ignore[arg-type, misc]
    assert torch.equal(whole.share, torch.stack([batch.share for batch in single]))  # type: ignore[arg-type, misc]


def test_an_epoch_depends_on_its_number_alone() -> None:
    recipe = Recipe(batch=8, crop=2, flip=True)
    one, other = (Batches(part(), PLAIN, recipe, "cpu", 0, "t") for _ in range(2))
    one.begin(1)
    one.begin(2)
    other.begin(2)
    assert torch.equal(one.at(0).x, other.at(0).x)
    one.begin(3)
    assert not torch.equal(one.at(0).x, other.at(0).x)


@pytest.mark.parametrize("name", policy.OPERATIONS)
def test_each_operation_of_the_policy_does_what_it_says(name: str) -> None:
    images = part(8, 16).images.permute(0, 2, 3, 1)
    which = torch.full((8,), policy.OPERATIONS.index(name))
    still = policy.apply(images, which, torch.zeros(8))
    moved = policy.apply(images, which, torch.full((8,), 0.6))
    assert still.shape == images.shape
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 255
    if name in ("identity", "brightness", "colour", "contrast", "sharpness", "turn", "shear-x", "move-y"):
        assert torch.allclose(still, images.float(), atol=1e-3)
    if name == "identity":
        assert torch.equal(moved, images.float())
    else:
        assert not torch.allclose(moved, images.float())
    if name == "move-x":
        shift = int(0.6 * 16 * 0.99 + 0.5)
        assert torch.equal(moved[:, :, : 16 - shift], images[:, :, shift:].float())
    if name == "brightness":
        assert torch.allclose(moved, (images * 1.594).clamp(0, 255), atol=1e-2)
    if name == "posterise":
        assert bool((moved % 16 == 0).all())


def test_the_last_epochs_may_be_calm() -> None:
    source = part()
    strong = Batches(source, PLAIN, Recipe(batch=32, epochs=10, policy="trivial", cutout=4, calm=0.2), "cpu", 0)
    plain = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    same = []
    for epoch in (1, 8, 9, 10):
        strong.begin(epoch)
        plain.begin(epoch)
        same.append(torch.equal(strong.at(0).x, plain.at(0).x))
    assert same == [False, False, True, True]
    assert all(bool((x >= 1).all()) for x in strong.inputs(epochs=1))  # so are those that give statistics: no hole


def test_the_policy_goes_as_far_as_its_reach() -> None:
    far, near = (Batches(part(), PLAIN, Recipe(batch=32, policy="trivial", reach=r), "cpu", 0) for r in (1.0, 0.25))
    strengths = []
    for batches in (far, near):
        batches.begin(1)
        strengths.append(batches._plan["strength"])
    assert torch.equal(strengths[1], 0.25 * strengths[0])
    assert float(strengths[0].abs().max()) > 0.9
    for name in ("reach", "calm"):
        with pytest.raises(ConfigError, match=name):
            Recipe(**{name: 1.5})  # type: ignore[arg-type]


def test_features_are_only_normalised() -> None:
    features = Part(torch.randn(20, 4), torch.arange(20) % 2)
    batches = Batches(features, Normalisation((1.0,) * 4, (2.0,) * 4), Recipe(batch=5, crop=2, flip=True), "cpu", 0)
    batches.begin(1)
    x, labels = batches.at(0).x, batches.at(0).labels
    assert x.shape == (5, 4)
    found = [(features.images - 1) / 2 == row for row in x]
    assert all(bool(match.all(1).any()) for match in found)
    assert len(labels) == 5


def test_mixup_blends_with_others_and_says_how_much() -> None:
    source = part()
    batches = Batches(source, PLAIN, Recipe(batch=32, mixup=1.0, epochs=10), "cpu", 0)
    whole = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    for epoch in range(1, 9):
        batches.begin(epoch)
        whole.begin(epoch)
        mixed, plain = batches.at(0), whole.at(0)
        assert mixed.share is not None
        share = float(mixed.share)
        assert 0 < share < 0.5
        others = (mixed.x - (1 - share) * plain.x) / share
        far = (others[:, None] - plain.x[None]).flatten(2).abs().amax(2)  # which image each was blended with
        partner = far.argmin(1)
        assert float(far.amin(1).max()) < 0.5
        assert torch.equal(plain.labels[partner], mixed.others)
    batches.begin(10)
    assert float(batches.at(0).share) == 0.0  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shares of the batches"):
        Recipe(cutmix=0.6, mixup=0.6)


def test_what_norms_are_measured_on_is_not_mixed_and_of_one_size() -> None:
    many = part(count=620)
    recipe = Recipe(batch=32, mixup=1.0, cutmix=0.0, epochs=4)
    chunks = list(Batches(many, PLAIN, recipe, "cpu", 0).inputs(epochs=2))
    assert [len(chunk) for chunk in chunks] == [250, 250, 250, 250]
    assert all(bool((chunk == chunk.round()).all()) for chunk in chunks)  # a blend would not be whole
    assert [len(chunk) for chunk in Batches(part(), PLAIN, recipe, "cpu", 0).inputs(epochs=1)] == [32]


def slow_zoom(image: np.ndarray, window: list[float], flip: bool) -> np.ndarray:
    """One image (h, w, c), pixel by pixel: each is blended of the four whose centres lie around its own."""
    height, width = image.shape[:2]
    top, left, tall, wide = window
    found = np.zeros(image.shape)
    for i in range(height):
        for j in range(width):
            place = (width - 1 - j if flip else j) + 0.5
            y = (top + (i + 0.5) / height * tall) * height - 0.5
            x = (left + place / width * wide) * width - 0.5
            y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
            for row, share in ((int(y), 1 - y % 1), (int(y) + 1, y % 1)):
                for column, part in ((int(x), 1 - x % 1), (int(x) + 1, x % 1)):
                    if share * part > 0:
                        found[i, j] += share * part * image[row, column]
    return found


def test_zoom_is_the_slow_one() -> None:
    images = part(6, 12).images[:, :, :, :9].permute(0, 2, 3, 1).contiguous()  # not square
    windows = looks.draw_windows((2, 3), 0.2, torch.Generator().manual_seed(1)).flatten(0, 1)
    windows[0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    flip = torch.tensor([False, True, False, True, False, True])
    found = looks.zoom(images, windows, flip)
    assert torch.allclose(found[0], images[0].float(), atol=1e-3)  # all of it is the image
    for number in range(6):
        expected = slow_zoom(images[number].numpy(), windows[number].tolist(), bool(flip[number]))
        assert np.abs(found[number].numpy() - expected).max() < 0.01
    assert torch.equal(looks.zoom(images[:1], windows[:1], None), found[:1])


def test_windows_are_as_large_as_asked_and_inside() -> None:
    windows = looks.draw_windows((50, 40), 0.3, torch.Generator().manual_seed(0)).flatten(0, 1)
    corner, size = windows[:, :2], windows[:, 2:]
    assert bool((corner >= 0).all())
    assert bool((corner + size <= 1 + 1e-6).all())
    area, ratio = size.prod(1), size[:, 0] / size[:, 1]
    assert 0.26 < float(area.min()) < 0.32  # a window that is cut at the border has less
    assert float(area.max()) > 0.95
    assert 0.7 < float(ratio.min()) < 0.8
    assert 1.25 < float(ratio.max()) < 1.4
    assert float(area.mean()) == pytest.approx(0.63, abs=0.03)


def test_colours_change_as_pillows_do() -> None:
    images = part(4, 10).images.permute(0, 2, 3, 1)
    factors = torch.tensor([[1.0, 1.0, 1.0], [1.3, 0.7, 1.2], [0.6, 1.4, 0.5], [0.9, 1.1, 0.0]])
    found = looks.jitter(images, factors)
    assert torch.allclose(found[0], images[0].float(), atol=1e-3)
    for image, factor, mine in zip(images, factors.tolist(), found, strict=True):
        changed = Image.fromarray(image.numpy())
        for kind, share in zip(
            (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), factor, strict=True
        ):
            changed = kind(changed).enhance(share)
        assert np.abs(np.asarray(changed).astype(float) - mine.numpy()).max() < 3  # it rounds after each
    grey = looks.jitter(part(2, 6).images[:, :1].permute(0, 2, 3, 1), factors[1:3])
    assert grey.shape == (2, 6, 6, 1)


def test_zoom_and_colour_are_of_the_seed_and_the_epoch() -> None:
    recipe = Recipe(
        batch=8, zoom=0.4, flip=True, colour=0.4, cutout=3, mixup=0.5, cutmix=0.5, policy="trivial", epochs=9
    )
    one, other = (Batches(part(), PLAIN, recipe, "cpu", 0, "t") for _ in range(2))
    one.begin(1)
    one.begin(2)
    other.begin(2)
    assert torch.equal(one.at(1).x, other.at(1).x)
    assert torch.equal(one.whole().x, torch.cat([one.at(step).x for step in range(one.steps)]))
    one.begin(3)
    assert not torch.equal(one.at(1).x, other.at(1).x)
    plain = Batches(part(), PLAIN, Recipe(batch=8, colour=0.4), "cpu", 0)
    plain.begin(1)
    assert float(plain.at(0).x.max()) <= 255
    with pytest.raises(ConfigError, match="two ways to crop"):
        Recipe(crop=4, zoom=0.5)
    with pytest.raises(ConfigError, match="zoom must lie between 0 and 1"):
        Recipe(zoom=1.5)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_channels_first_in_memory_on_a_cpu(channels: int) -> None:
    """With one channel too, where both orders are the same numbers: by its strides PyTorch chooses its kernels."""
    task = make_task("t", shape=(8, 8, channels))
    batches = Batches(task.train, measure(task.train), Recipe(batch=4), "cpu", 0)
    batches.begin(1)
    assert batches.at(0).x.stride() == (64 * channels, 64, 8, 1)
