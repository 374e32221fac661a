"""What was asked for on the command line, understood: the stream, the settings, the network that grows."""

from __future__ import annotations

import dataclasses
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grown import data
from grown.bench import presets
from grown.config import Config, Recipe, Target, is_target_file
from grown.data.folders import PREFIX, Step, Tell, folder_stream
from grown.errors import ConfigError, GrownError, unknown
from grown.methods import method
from grown.models import BACKBONES, backbone

MINI = "miniimagenet-20"
RECIPE_FIELDS = tuple(f.name for f in dataclasses.fields(Recipe) if f.name != "name")
CONFIG_FIELDS = tuple(f.name for f in dataclasses.fields(Config) if f.name != "recipe")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None means: as the benchmark's preset says."""

    benchmark: str = "digits"
    method: str = "grown"
    backbone: str | None = None
    width: float = 1.0
    recipe: str | None = None
    protocol: str = "honest"
    target: Target | None = None
    seed: int = 0
    threads: int | None = None
    epochs: int | None = None
    tasks: int | None = None
    device: str = "cpu"
    data: Path | None = None
    out: Path | None = None
    label: str = "default"
    settings: tuple[str, ...] = ()  # NAME=VALUE, of Config or of its recipe
    image_size: int | None = None  # of folder:PATH and miniimagenet-20
    skip_broken: bool = False  # of folder:PATH alone

    @property
    def folder(self) -> Path | None:
        """Where one's own images lie, if it is they that are learned."""
        return Path(self.benchmark.removeprefix(PREFIX)) if self.benchmark.startswith(PREFIX) else None

    @property
    def decodes(self) -> bool:
        """Whether image files are decoded, which takes a while when it is done first."""
        return self.folder is not None or self.benchmark == MINI

    def to_json(self) -> dict[str, Any]:
        """Plain data; the data's path as it holds from any folder."""
        found = dataclasses.asdict(dataclasses.replace(self, out=None))
        found["data"] = str(self.data.resolve()) if self.data is not None else None
        if self.folder is not None:
            found["benchmark"] = f"{PREFIX}{self.folder.resolve()}"
        found["target"] = str(self.target) if isinstance(self.target, Path) else self.target
        return found

    @staticmethod
    def from_json(found: dict[str, Any]) -> Request:
        """The request that `to_json` wrote."""
        where, target = found["data"], found["target"]
        return Request(
            **{
                **found,
                "data": Path(where) if where is not None else None,
                "target": Path(target) if is_target_file(target) else target,
                "settings": tuple(found["settings"]),
            }
        )


def read_tasks(request: Request, tell: Tell | None = None, step: Step | None = None) -> list[data.Task]:
    """The stream that is asked for; of one's own images it is told what they become, and how far the decoding is."""
    if request.folder is None and request.skip_broken:
        raise ConfigError(f"--skip-broken is for {PREFIX}PATH, not for {request.benchmark!r}")
    if not request.decodes:
        if request.image_size is not None:
            raise ConfigError(f"--image-size is for {PREFIX}PATH and {MINI}, not for {request.benchmark!r}")
        return data.stream(request.benchmark, request.data)
    if request.folder is not None and request.data is not None:
        raise ConfigError(f"--data is not for {PREFIX}PATH, which says itself where the images lie")
    configure(request, presets.benchmark(request.benchmark))  # nothing is decoded for a request that is wrong
    method(request.method)
    if request.folder is None:
        return data.miniimagenet_stream(request.data, request.image_size, tell=tell, step=step)
    return folder_stream(request.folder, request.image_size, skip_broken=request.skip_broken, tell=tell, step=step)


def first_tasks(tasks: list[data.Task], request: Request) -> list[data.Task]:
    """As many of the stream's tasks as are asked for."""
    if request.tasks is not None and not 1 <= request.tasks <= len(tasks):
        raise ConfigError(f"--tasks must lie between 1 and {len(tasks)}, but got {request.tasks}")
    return tasks[: request.tasks]


def configure(request: Request, preset: presets.Benchmark) -> Config:
    """The preset with what was asked for on top."""
    recipe = presets.recipe(request.recipe if request.recipe is not None else preset.recipe)
    if request.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=request.epochs)
    changes: dict[str, Any] = {"recipe": recipe, "seed": request.seed, "device": request.device}
    if request.target is not None:
        changes["target"] = request.target
    if request.protocol == "paper":
        # All images that may train do so from the start, so nothing is decided on a part of them first.
        changes |= {"protocol": "paper", "refit": False, "decide": 1.0, "trial": True}
    elif request.protocol != "honest":
        raise unknown("protocol", request.protocol, ("honest", "paper"))
    if request.threads is not None:
        changes["threads"] = request.threads
    if not 0 < request.width <= 16:
        raise ConfigError(f"--width must lie above 0 and at most at 16, but got {request.width}")
    config = override(preset.config.replace(**changes), request.settings)
    check_device(config.device)
    return config


def override(config: Config, settings: tuple[str, ...]) -> Config:
    """Settings given as NAME=VALUE, all at once; a name is a field of `Config` or of its recipe."""
    ours: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, but got {setting!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name not in (*CONFIG_FIELDS, *RECIPE_FIELDS):
            raise unknown("setting", name, (*CONFIG_FIELDS, *RECIPE_FIELDS))
        (recipe if name in RECIPE_FIELDS else ours)[name] = value
    return config.replace(**ours, recipe=dataclasses.replace(config.recipe, **recipe))


def check_device(name: str) -> None:
    """Refuse a device that is not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}. Choices: cpu, cuda, cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}. Choices: cpu, cuda, cuda:N.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} was asked for, but PyTorch sees {torch.cuda.device_count()} CUDA devices")


def make_template(name: str, shape: tuple[int, ...], width: float, seed: int, narrow: str = "even") -> nn.Module:
    """A backbone by name, or `package.module:function` of the user's own; drawn by the seed alone.

    Of a width below 1 it is as narrow seed networks are (`Config.shape`).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ":" not in name:
            return backbone(name, channels=shape[0], width=width, image=shape[-1], narrow=narrow)
        module_name, _, function = name.partition(":")
        if width != 1.0:
            raise ConfigError(f"--width scales the backbones {', '.join(sorted(BACKBONES))}, not {name!r}")
        try:
            made = getattr(importlib.import_module(module_name), function)()
        except GrownError:
            raise
        except Exception as error:
            raise ConfigError(f"backbone {name!r} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise ConfigError(f"backbone {name!r} made a {type(made).__name__}, but must make an nn.Module")
        return made
