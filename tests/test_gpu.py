"""On a GPU: the captured step computes what the plain one does; memory is exact there too.

The fused kernels that it runs are in test_fused.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import grown
from forging import GOLDEN
from grown.bench.request import Request
from grown.bench.runner import resume, run
from grown.config import Recipe
from grown.data.normalisation import measure
from grown.errors import Stopped
from grown.io import container, journal
from grown.methods.grown import mixed
from grown.methods.plain import PlainTraining, plain_groups
from grown.methods.pnn.columns import EARLIER
from grown.models import backbone
from grown.nn import fusing
from grown.train import captured as captured_steps
from grown.train import turns
from grown.train.batches import Batches
from grown.train.lanes import fit_together
from grown.train.loop import fit
from grown.train.steps import Work
from helpers import assert_same_networks, make_task, near, quick, shake

pytestmark = pytest.mark.gpu
LAST = torch.channels_last
DEVICE = "cuda"


def assert_same_update(start: dict, one: dict, other: dict) -> None:
    """Six small steps change everything alike; after many large ones even two plain trainings drift apart."""
    for key, before in start.items():
        if "num_batches" in key or not before.is_floating_point() or not before.numel():
            continue
        change = one[key].float() - before.float()
        if float(change.norm()) > 0:
            near(other[key].float() - before.float(), change, 1e-2)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("growing", [False, True])
def test_a_captured_step_is_the_plain_step(growing: bool) -> None:
    """The same steps, captured and not, from the same start, in full precision: the same update.

    Scores stand still here: Adam's first steps follow a gradient's sign, which rounding decides where it is near zero.
    """
    task = make_task("t", shape=(32, 32, 3), each=32)
    recipe = Recipe(
        epochs=1, batch=16, rate=1e-4, score_rate=1e-7, precision="fp32", crop=2, flip=True, cutout=4, cutmix=0.5
    )
    states = []
    for captured in (False, True):
        torch.manual_seed(0)
        config = quick(device="cuda", recipe=recipe, growth="open")
        learner = grown.Learner(backbone("vgg16-bn-pool", width=0.125), config)
        stage = learner.open(make_task("t0", shape=(32, 32, 3), each=8))
        stage.network.cpu()
        shake(stage, seed=0)
        stage.network.cuda()
        stage.commit()
        stage = learner.open(make_task("t1", shape=(32, 32, 3), each=8))
        if growing:
            assert stage.expand()
        start = {key: value.clone() for key, value in stage.network.state_dict().items()}
        batches = Batches(task.train, measure(task.train), recipe, "cuda", 0)
        assert batches.steps > captured_steps.WARM_STEPS + 1
        penalty = stage.penalty if stage.has_penalty else None
        work = Work(stage.network, stage.parameter_groups(), batches, recipe, penalty=penalty)
        fit(work, capture=captured)
        states.append(stage.network.state_dict())
    assert_same_update(start, *states)


@pytest.mark.usefixtures("exact")
def test_scratch_is_the_same_captured_or_not() -> None:
    task = make_task("t", shape=(32, 32, 3), each=32)
    recipe = Recipe(epochs=1, batch=16, rate=1e-4, precision="fp32")
    learner = grown.Learner(backbone("resnet18", width=0.125), quick(), input_shape=(3, 32, 32))
    states = []
    for captured in (False, True):
        training = PlainTraining(learner.graph, learner.gains, quick(device="cuda", recipe=recipe))
        network = training.fresh(task, 0).cuda().train().requires_grad_(True)
        start = {key: value.clone() for key, value in network.state_dict().items()}
        batches = Batches(task.train, measure(task.train), recipe, "cuda", 0)
        fit(Work(network, plain_groups(network), batches, recipe), capture=captured)
        assert any(isinstance(part, nn.ReLU) for part in network.modules())
        states.append(network.state_dict())
    assert_same_update(start, *states)


@pytest.mark.usefixtures("exact")
def test_copies_in_half_precision_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("t", shape=(32, 32, 3), each=32)
    recipe = Recipe(epochs=2, batch=16, rate=1e-2)
    learner = grown.Learner(backbone("resnet18", width=0.125), quick(), input_shape=(3, 32, 32))
    states = []
    for copies in (True, False):
        training = PlainTraining(learner.graph, learner.gains, quick(device="cuda", recipe=recipe))
        network = training.fresh(task, 0).cuda().train().requires_grad_(True)
        work = Work(network, plain_groups(network), Batches(task.train, measure(task.train), recipe, "cuda", 0), recipe)
        assert captured_steps._is_plain(work)
        with monkeypatch.context() as patch:
            patch.setattr(captured_steps, "_is_plain", lambda _, copies=copies: copies)
            fit(work)
        states.append(network.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["vgg16-bn-pool", "resnet18"])
def test_trainings_side_by_side_come_out_as_alone(name: str) -> None:
    # A rate whose updates of a norm's weights, around 1, are far above what fp32 resolves there.
    recipe = Recipe(epochs=1, batch=16, rate=1e-3, precision="fp32", turns=True, crop=2)
    learner = grown.Learner(backbone(name, width=0.125), quick(), input_shape=(3, 32, 32))
    found = []
    for lanes in (1, 2):
        training = PlainTraining(learner.graph, learner.gains, quick(device="cuda", recipe=recipe, lanes=lanes))
        works, starts = [], []
        for number in range(3):
            task = make_task(f"t{number}", shape=(32, 32, 3), each=8 + 16 * number, classes=4)
            network = training.fresh(task, number).cuda().train().requires_grad_(True)
            turns.TurnedHead(network, learner.graph.head.name, torch.Generator().manual_seed(0))
            starts.append({key: value.clone() for key, value in network.state_dict().items()})
            batches = Batches(task.train, measure(task.train), recipe, "cuda", 0)
            works.append(Work(network, plain_groups(network), batches, recipe))
        fit_together(works, lanes)
        found.append([work.network.state_dict() for work in works])
    for start, one, other in zip(starts, *found, strict=True):
        assert_same_update(start, one, other)


def test_memory_is_exact_on_a_gpu() -> None:
    learner = grown.Learner(
        backbone("vgg16-bn-pool", width=0.125),
        quick(device="cuda", growth="open", target=100.0, expansions=1, width_multiple=8, max_size=4.0),
    )
    x = torch.randn(16, 3, 32, 32, device="cuda")
    known: dict[str, torch.Tensor] = {}
    for number in range(4):
        report = learner.learn(make_task(f"t{number}", shape=(32, 32, 3), each=16, noise=120.0))
        known[report.name] = learner.extract(report.name).cuda()(x)
        for name, logits in known.items():
            assert torch.equal(learner.extract(name).cuda()(x), logits)
    assert all(width % 8 == 0 for width in learner.widths[1:])


@pytest.mark.parametrize("parts", [{"sparse": False}, {"sparse": False, "select": False}, {"retrain": False}])
def test_parts_that_are_off_learn_on_a_gpu(parts: dict[str, bool]) -> None:
    """In half precision and beside the main stream, also where nothing masks a layer's kernels."""
    recipe = Recipe(epochs=6, batch=16, rate=0.05)
    config = quick(device="cuda", recipe=recipe, grow=False, start_size=0.5, seed_size=0.5, **parts)  # type: ignore[arg-type]
    learner = grown.Learner(backbone("vgg16-bn-pool", width=0.125), config)
    for number in range(2):
        report = learner.learn(make_task(f"t{number}", shape=(32, 32, 3), each=32))
        assert report.val > 60.0


@pytest.mark.parametrize("method", ["grown", "scratch"])
def test_a_run_goes_on_on_a_gpu(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the epoch that was kept, with losses like those of a run that nobody disturbed."""
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    settings = {"method": method, "device": "cuda", "tasks": 2, "epochs": 6, "target": 0.0}
    losses: dict[str, list[float]] = {"whole": [], "first": [], "second": []}

    def note(kind: str, end: int | None = None) -> Callable[[dict[str, Any]], None]:
        def tell(event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                losses[kind].append(event["loss"])
                if len(losses[kind]) == end:
                    raise KeyboardInterrupt

        return tell

    result, _ = run(Request(**settings, out=tmp_path / "a"), note("whole"))  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        run(Request(**settings, out=tmp_path / "b"), note("first", end=9))  # type: ignore[arg-type]
    again, _ = resume(tmp_path / "b", note("second"))
    assert len(losses["second"]) < len(losses["whole"])
    assert losses["second"][-1] == pytest.approx(losses["whole"][-1], rel=0.3)
    assert again["average_accuracy"] == pytest.approx(result["average_accuracy"], abs=5.0)
    assert again["forgetting"] == 0.0


def test_zoomed_and_recoloured_images_are_those_of_the_cpu() -> None:
    task = make_task("t", shape=(84, 84, 3), each=8)
    recipe = Recipe(batch=8, zoom=0.35, flip=True, colour=0.4, cutout=8, cutmix=0.5, epochs=10)
    found = []
    for device in ("cpu", "cuda"):
        batches = Batches(task.train, measure(task.train), recipe, device, 0)
        batches.begin(1)
        found.append(batches.whole().x.cpu())
        one_by_one = torch.cat([batches.at(step).x for step in range(batches.steps)]).cpu()
        torch.testing.assert_close(found[-1], one_by_one, atol=1e-3, rtol=0)  # a GPU sums in another order
    torch.testing.assert_close(found[0], found[1], atol=1e-2, rtol=0)


@pytest.mark.parametrize("kind", ["grown", "soft", "bf16", "cpg", "wsn"])
def test_networks_that_are_put_together_on_a_gpu_have_the_same_bits(kind: str) -> None:
    learner = grown.load(GOLDEN / f"v{container.VERSION}-{kind}.safetensors")
    assert_same_networks(learner, "cuda")


@pytest.mark.parametrize("name", sorted(grown.METHODS))
def test_every_method_learns_a_stream_on_a_gpu(name: str, tmp_path: Path) -> None:
    early = ("early=1", "early_epochs=2", "early_turns=true")
    request = Request(method=name, device="cuda", tasks=3, epochs=4, target=0.0, settings=early, out=tmp_path / "run")
    result, _ = run(request)
    assert result["average_accuracy"] > 50.0
    assert grown.METHODS[name].forgets or result["forgetting"] == 0.0


def test_earlier_columns_run_fused_while_the_next_one_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    pnn = grown.METHODS["pnn"](
        backbone("lenet", width=0.2, image=16), quick(device=DEVICE, pnn_width=0.5), input_shape=(3, 16, 16)
    )
    for number in range(2):
        pnn.learn(make_task(f"t{number}", each=8, shape=(16, 16, 3), seed=number))
    (training,) = pnn._trainings(make_task("t2", each=8, shape=(16, 16, 3)))
    inside = training.network.to(DEVICE).get_submodule(EARLIER)
    x, kernels, taken = torch.randn(8, 3, 16, 16, device=DEVICE).to(memory_format=LAST), fusing._kernels, []
    monkeypatch.setattr(fusing, "_kernels", lambda x: taken.append(x.dtype) or kernels(x))
    with torch.autocast(DEVICE, torch.bfloat16):
        for one, other in zip(inside.train()(x), inside.eval()(x), strict=True):
            near(one, other, 0.02)
    assert len(taken) == 8  # two norms and two pools in each column
    assert set(taken) == {torch.bfloat16}


def test_mixed_batches_are_answered_as_each_task_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eagerly, captured, with room for a part of the batch only, and after a task of more classes came."""
    monkeypatch.setattr(mixed, "SMALL", 8)
    learner = grown.Learner(backbone("vgg16-bn-pool", width=0.125), quick(grow=False))
    for number in range(3):
        learner.learn(make_task(f"t{number}", shape=(32, 32, 3), each=16, classes=2 + number % 2))
    draw = np.random.default_rng(0)
    for turn, size in enumerate((40, 40, 40, 40, 7, 9, 9, 9, 9)):
        if turn == 4:
            learner.learn(make_task("more", shape=(32, 32, 3), each=16, classes=5))
        if turn == 5:
            monkeypatch.setattr(mixed, "MOST", 8)
            learner._mixed.clear()
        images = draw.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        batch = images.astype(np.float32) if turn == 8 else images
        names = [learner.tasks[number] for number in draw.integers(0, len(learner.tasks), size)]
        found = learner.predict_mixed(batch, names, "cuda")
        for name, image, answer in zip(names, images, found, strict=True):
            alone = learner.predict(name, image[None])[0]
            near(answer, alone, 1e-2)  # TF32
            assert int(answer.argmax()) == int(alone.argmax())
