"""Methods times seeds: which runs a comparison is made of, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grown.bench import presets
from grown.bench.ablation import STEPS
from grown.bench.request import Request, configure, first_tasks, make_template, read_tasks
from grown.config import Target
from grown.data import Task
from grown.errors import ConfigError
from grown.methods import method

SCRATCH = "scratch"
TARGETED = ("grown", "cpg")  # methods that go on until a task reaches its target


@dataclass(frozen=True)
class Cell:
    """One method with one setting and one seed: one run's folder."""

    request: Request
    needs: Path | None = None  # the folder of the Scratch run whose held-out accuracies are its targets
    own_target: Target | None = None  # the target that it would have without that run

    @property
    def folder(self) -> Path:
        """Where its run lies."""
        assert self.request.out is not None
        return self.request.out

    @property
    def setting(self) -> str:
        """The method, and its label where it has one of its own."""
        return setting_name(self.request.method, self.request.label)

    @property
    def name(self) -> str:
        """What it is called in lines and tables."""
        return f"{self.setting}, seed {self.request.seed}"


def setting_name(method_name: str, label: str) -> str:
    """What a method's setting is called."""
    return method_name if label == "default" else f"{method_name}, {label}"


@dataclass(frozen=True)
class Grid:
    """What is compared; `base` has what all of its runs have in common."""

    base: Request
    out: Path
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    ablation: bool = False

    def check(self, *, elsewhere: bool = False) -> list[Task]:
        """Refuse what would fail in every run, before anything is written; `elsewhere`: their devices are not ours."""
        for kind, given in (("method", self.methods), ("seed", self.seeds)):
            for value in given:
                if given.count(value) > 1:
                    raise ConfigError(f"{kind} {value} is given twice")
        for name in self.methods:
            method(name)
        if not self.seeds or not (self.methods or self.ablation):
            raise ConfigError("there is nothing to compare: give --methods and --seeds")
        preset = presets.benchmark(self.base.benchmark)
        request = dataclasses.replace(self.base, device="cpu") if elsewhere else self.base
        for seed in self.seeds:
            configure(dataclasses.replace(request, seed=seed), preset)
        tasks = first_tasks(read_tasks(request), request)
        make_template(request.backbone or preset.backbone, tasks[0].input_shape, request.width, self.seeds[0])
        return tasks

    def cells(self, is_done: Callable[[Cell], bool]) -> list[Cell]:
        """Every run, in the order in which they build on each other: Scratch first.

        Where Scratch is compared too, or its run is done, what aims at Scratch's accuracy takes it from there.
        """
        scratch = {seed: self._cell(SCRATCH, seed) for seed in self.seeds}
        known = {
            seed: cell.folder for seed, cell in scratch.items() if SCRATCH in self.methods or is_done(cell)
        }  # fmt: skip
        settings: list[tuple[str, str, tuple[str, ...]]] = [
            (name, "default", ()) for name in sorted(self.methods, key=lambda name: name != SCRATCH)
        ]
        if self.ablation:
            settings += [("grown", label, changes) for label, changes in STEPS.items()]
        shared = known if self._aims_at_scratch() else {}
        return [
            self._cell(name, seed, label, changes, shared.get(seed) if name in TARGETED else None)
            for name, label, changes in settings
            for seed in self.seeds
        ]

    def _aims_at_scratch(self) -> bool:
        config = configure(dataclasses.replace(self.base, device="cpu"), presets.benchmark(self.base.benchmark))
        return config.target == SCRATCH and not any(word.startswith("target=") for word in self.base.settings)

    def _cell(
        self,
        name: str,
        seed: int,
        label: str = "default",
        changes: tuple[str, ...] = (),
        scratch: Path | None = None,
    ) -> Cell:
        request = dataclasses.replace(
            self.base,
            method=name,
            seed=seed,
            label=label,
            settings=(*self.base.settings, *changes),
            target=scratch / "result.json" if scratch is not None else self.base.target,
            out=self.out / f"{name}-{label.replace(':', '-')}-{seed}",
        )
        return Cell(request, scratch, self.base.target)
