"""Every setting, once: the Python API, the command line's flags and the run's record are this dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grown.errors import ConfigError, unknown

TARGETS = ("scratch", "finetune", "best")
Target = float | int | str | Path | Callable[[Any], float]


@dataclass(frozen=True)
class Recipe:
    """How one training runs: the same for every method that is compared."""

    name: str = "default"
    epochs: int = 30
    batch: int = 32
    optimizer: str = "sgd"  # or "adam"
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4  # on kernels and heads; norms, biases and scores have none
    score_rate: float = 1e-2  # Adam, for scores and gates
    schedule: str = "one-cycle"  # or "constant", "cosine", "decay", "steps" (a tenth from 0.5 on, a hundredth from 0.8)
    decay: float = 0.95  # what the rate is multiplied by after each epoch of schedule "decay"
    warmup: float = 0.2  # the share of the steps in which the one-cycle rate rises
    smoothing: float = 0.0
    crop: int = 0  # pixels of padding for a random crop
    zoom: float = 0.0  # random resized crops of at least this share of the image's area; 0: none
    flip: bool = False
    cutout: int = 0  # the side of a square that is blanked
    colour: float = 0.0  # brightness, contrast and saturation each change by up to this share
    policy: str = "none"  # or "trivial": one random operation an image
    reach: float = 1.0  # how far that operation may go; 1: TrivialAugment's wide ranges
    calm: float = 0.0  # the share of the epochs, at the end, that leave cutout and the policy out
    cutmix: float = 0.0  # the share of batches in which a box comes from other images; none in the last tenth
    mixup: float = 0.0  # the share of batches in which images are blended with others; none in the last tenth
    turns: bool = False  # rotation labels: each image in its four quarter turns, each class once for each turn
    agree: float = 0.0  # with turns: how much the upright answer is drawn to what the four say together
    watch: int = 1  # held-out accuracy is looked at every so many epochs (it decides nothing before the end)
    precision: str = "auto"  # bf16 on a GPU, fp32 on the CPU; or "fp32"

    def __post_init__(self) -> None:
        _choice("optimizer", self.optimizer, ("sgd", "adam"))
        _choice("schedule", self.schedule, ("one-cycle", "constant", "cosine", "decay", "steps"))
        _choice("policy", self.policy, ("none", "trivial"))
        _choice("precision", self.precision, ("auto", "fp32"))
        for name in ("epochs", "batch", "watch"):
            _whole(name, getattr(self, name), 1)
        for name in ("crop", "cutout"):
            _whole(name, getattr(self, name), 0)
        for name in ("cutmix", "mixup", "zoom", "colour"):
            _within(name, getattr(self, name), 0.0, 1.0)
        if self.crop and self.zoom:
            raise ConfigError(
                f"crop and zoom are two ways to crop, so one of them is 0, but got {self.crop}, {self.zoom}"
            )
        if self.cutmix + self.mixup > 1.0:
            raise ConfigError(f"cutmix and mixup are shares of the batches, but got {self.cutmix} and {self.mixup}")
        _within("agree", self.agree, 0.0, 100.0)
        for name in ("reach", "calm"):
            _within(name, getattr(self, name), 0.0, 1.0)
        for name in ("flip", "turns"):
            _flag(name, getattr(self, name))
        for name in ("rate", "score_rate"):
            _above(name, getattr(self, name), 0.0)
        _within("momentum", self.momentum, 0.0, 0.999)
        _within("weight_decay", self.weight_decay, 0.0, 1.0)
        _above("decay", self.decay, 0.0)
        _within("decay", self.decay, 0.0, 1.0)
        _within("warmup", self.warmup, 0.0, 1.0)
        _within("smoothing", self.smoothing, 0.0, 0.9)


@dataclass(frozen=True)
class Config:
    """GROWN's settings. Sizes are multiples of 1x, the template's shared weights."""

    # how large
    seed_size: float = 0.3  # the size after task 1, at most
    start_size: float | None = None  # where task 1 starts; half of seed_size if None
    max_size: float = 1.5  # the size in all, at most
    task_size: float = 0.3  # what one task may add, at most
    step_size: float = 0.1  # what one expansion may add, at most
    expansions: int = 3  # how often one task may expand, at most
    trial: bool = True  # an expansion is trained before it is kept, and kept if held-out accuracy rises
    anew: bool = False  # that training begins as the task began; off: where the one before ended, as in the paper
    glance: float = 0.0  # with anew: this share of reuse's epochs is tried first, and may show that it is hopeless
    hopeless: float = 12.0  # which it is when it ends so many points below the target; the task then expands at once
    kernel_format: str = "fp32"  # how kernels are stored, and so what they are rounded to before a commit; or "bf16"
    width_multiple: int = 1  # channels come (DEN's: train) in units of so many; 8 suits a GPU's matrix units
    shape: str = "even"  # of what is narrower than the template: all widths scaled alike; or "hidden": linear layers'

    # which parts are on: the paper's ablation
    select: bool = True  # selective mask on frozen kernels; off: every old kernel is used
    sparse: bool = True  # attentive mask on trainable kernels; off: conventional learnable growth
    retrain: bool = True  # released kernels are trained again
    grow: bool = True  # expand when the target is missed

    # how masks learn
    start: str = "open"  # a later task starts with every frozen kernel picked; or "related": as the most related task
    growth: str = "slim"  # new channels start closed; or "open": they start open and are pruned
    mask: str = "hard"  # or "gumbel"
    soft_select: bool = False  # KSM's soft form: an unpicked kernel keeps a scaled real value
    score_start: float = 0.1  # scores start this far above the threshold
    new_start: float | None = None  # the same for kernels that the task trains itself; as score_start if None
    gate_start: float = 0.005  # gates start this far above it (open) or below it (slim)
    gumbel_start: float = 3.0  # the same for Gumbel masks, which need room for their noise
    temperature: float = 1.0  # of the Gumbel masks at the start of a training
    temperature_end: float = 0.2
    growth_weight: float = 0.1  # lambda of Eq. 3 and 8, on the expected L0 over the budget
    density: float | None = None  # a density of the attentive mask to be reached, by density_weight
    density_weight: float = 1.0

    # when to grow
    protocol: str = "honest"  # held-out training images decide; "paper": the test images do, or the task's validation
    target: Target = "scratch"
    margin: float = 0.0  # points of held-out accuracy by which a target may be missed; below 0: must be exceeded
    holdout: float = 0.2  # the part of the training set that decides
    refit: bool = False  # once it is decided whether to grow, train anew on the whole training set
    decide: float = 1.0  # with refit: the share of the epochs that trainings on a part of the data take, any method's

    # what the first tasks get more of, by any method, since later ones may use what they leave
    early: int = 0  # how many tasks these are
    early_epochs: float = 1.0  # how many times the recipe's epochs they train
    early_turns: bool = False  # whether they train on rotation labels, whatever the recipe says

    # how methods that share one network keep what they know; nothing of this is GROWN's
    ewc_strength: float = 1000.0  # lambda of EWC, on half the Fisher-weighted squared distance
    si_strength: float = 100.0  # c of SI
    si_damping: float = 0.1  # xi of SI, which keeps weights that hardly moved from weighing without bounds
    mas_strength: float = 0.1  # lambda of MAS
    importance_images: int = 500  # of a task, at most, by which EWC and MAS weigh the kernels
    lwf_strength: float = 1.0  # lambda_o of LwF, on the distillation of each earlier task
    lwf_temperature: float = 2.0  # T of LwF
    replay_strength: float = 1.0  # on the mean loss over the memory
    memory_bytes: int | None = None  # of replay's images and labels; None: 0.05 of 1x, an image a class at least

    # CPG; the published schedule goes with recipe "paper": 100 epochs, 20 a level of pruning, 30 of retraining
    cpg_train_goal: float = 95.0  # the training accuracy (%) below which a task widens the network too
    cpg_step: float = 0.5  # what one widening adds, over the template's weights: each width x sqrt(1.5), sqrt(2), ...
    cpg_tasks: int | None = None  # how many there will be; None: those foreseen, or else one more than now
    cpg_pick_start: float = 0.005  # how far above its threshold a mask starts: 0.01 against 0.005
    cpg_pick_rate: float = 5e-4  # of Adam, for masks; a fifth of it from half of the epochs on, none from 0.7 on
    cpg_repick_rate: float = 1e-4  # the same while retraining, constant
    cpg_prune_step: float = 0.1  # levels of pruning: so much of the task's own weights more each time
    cpg_prune_most: float = 0.95  # the last level
    cpg_prune_epochs: float = 0.2  # a level's epochs, over the recipe's
    cpg_prune_ramp: float = 0.2  # the share of these in which the pruned part rises, steeply first (cubic)
    cpg_prune_rate: float = 0.1  # the rate of pruning and retraining, over the recipe's; constant
    cpg_retrain_epochs: float = 0.3  # at most, over the recipe's
    cpg_patience: int = 5  # retraining ends after so many epochs without a better one

    # how methods that put masks on one network learn; nothing of this is GROWN's
    packnet_prune: float = 0.6  # the share of the weights that a task trained that it gives up again, in each layer
    packnet_retrain: float = 0.5  # epochs of the training after that, as a share of the one before
    wsn_density: float = 0.5  # c of WSN, the share of each layer's weights that a task uses
    wsn_start: float = 0.1  # its scores start within so far of 0
    piggyback_start: float = 1e-2  # where Piggyback's real masks start
    piggyback_threshold: float = 5e-3  # a weight is used where its real mask is above
    piggyback_rate: float = 5e-4  # of Adam, for them
    ksm_start: float = 1e-2  # where KSM's scores start; its gate is sigma(12 (m - 0.005))
    ksm_rate: float = 2e-4  # of Adam, for them
    supsup_density: float = 0.5  # the share of each layer's random weights that a task of SupSup uses
    supsup_start: float = 0.1  # its scores start within so far of 0

    # APD: shared and task-adaptive parts of each weight
    apd_sparsity: float = 4e-4  # lambda_1, on the absolute task-adaptive parts, which are cut at this value too
    apd_drift: float = 100.0  # lambda_2, on the squared drift of earlier tasks' weights
    apd_consolidate: int = 5  # every so many tasks, what groups of tasks have in common moves into locally shared parts
    apd_groups: int = 2  # k, by which the number of groups rises each time
    apd_gap: float = 1e-2  # beta: what a group's tasks differ in by no more is common

    # DEN: selective retraining, expansion, splitting
    den_sparsity: float = 1e-4  # L1 on kernels and heads, at which they are cut too
    den_drift: float = 2.0  # L2 on what retrained kernels drift by
    den_loss: float = 0.05  # the training loss above which it expands, beyond what label smoothing leaves
    den_units: int = 4  # k, the units that an expansion adds to each layer, at most
    den_group: float = 1e-2  # group lasso on each new unit's incoming kernels; what is not above it is dropped
    den_split: float = 0.02  # a unit whose incoming kernels drifted farther is split

    # how methods with a frozen past add to it; nothing of this is GROWN's
    grow_weight: float = 1.0  # lambda of Grow, times the gap between its open channels and what the budget pays for
    grow_beta: float = 100.0  # the slope of a filter's gate once it was in use in as many steps as a training has
    grow_offer: float = 2.0  # candidates for so many times what the budget pays for, of which Grow chooses
    pnn_width: float | None = None  # of a PNN column, as a share of 1x; None: so that all columns keep to max_size
    adapter_rank: int = 1  # of each layer's update by adapter; at most what has as many numbers as the layer

    # how to run
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    threads: int | None = None  # of PyTorch on CPU; None leaves them as they are
    device: str = "cpu"
    lanes: int = 8  # independent trainings that share a GPU at a time

    def __post_init__(self) -> None:
        for name in ("select", "sparse", "retrain", "grow", "soft_select", "refit", "trial", "anew", "early_turns"):
            _flag(name, getattr(self, name))
        _above("seed_size", self.seed_size, 0.0)
        _above("task_size", self.task_size, 0.0)
        _above("step_size", self.step_size, 0.0)
        _above("max_size", self.max_size, 0.0)
        if self.max_size < self.seed_size:
            raise ConfigError(
                f"max_size must be at least seed_size, but got {self.max_size} below {self.seed_size}: "
                "the budget is below the seed network"
            )
        if self.start_size is not None and not 0 < self.start_size <= self.seed_size:
            raise ConfigError(
                f"start_size must lie above 0 and at most at seed_size {self.seed_size}, but got {self.start_size}"
            )
        _whole("expansions", self.expansions, 0)
        _whole("width_multiple", self.width_multiple, 1)
        _choice("start", self.start, ("open", "related"))
        _whole("early", self.early, 0)
        _within("early_epochs", self.early_epochs, 0.01, 100.0)
        _choice("growth", self.growth, ("slim", "open"))
        _choice("shape", self.shape, ("even", "hidden"))
        _choice("protocol", self.protocol, ("honest", "paper"))
        if self.protocol == "paper" and self.refit:
            raise ConfigError("by protocol 'paper' all training images train from the start, so refit must be False")
        _choice("mask", self.mask, ("hard", "gumbel"))
        _choice("kernel_format", self.kernel_format, ("fp32", "bf16"))
        if self.soft_select and not self.select:
            raise ConfigError("soft_select needs select=True")
        if self.new_start is not None:
            _above("new_start", self.new_start, 0.0)
        for name in ("score_start", "gate_start", "gumbel_start", "temperature", "temperature_end"):
            _above(name, getattr(self, name), 0.0)
        for name in ("growth_weight", "density_weight"):
            _within(name, getattr(self, name), 0.0, math.inf)
        for name in ("ewc_strength", "si_strength", "mas_strength", "lwf_strength", "replay_strength"):
            _within(name, getattr(self, name), 0.0, 1e9)
        for name in ("si_damping", "lwf_temperature"):
            _above(name, getattr(self, name), 0.0)
        for name in ("apd_sparsity", "apd_drift"):
            _above(name, getattr(self, name), 0.0)
        for name in ("apd_consolidate", "apd_groups"):
            _whole(name, getattr(self, name), 1)
        for name in ("den_sparsity", "den_group", "den_drift", "den_loss", "den_split"):
            _within(name, getattr(self, name), 0.0, 1e9)
        _whole("den_units", self.den_units, 0)
        _within("apd_gap", self.apd_gap, 0.0, 1e9)
        _whole("importance_images", self.importance_images, 1)
        _within("grow_weight", self.grow_weight, 0.0, 1e9)
        _within("grow_beta", self.grow_beta, 1.0, 1e6)
        _within("grow_offer", self.grow_offer, 1.0, 16.0)
        if self.pnn_width is not None:
            _within("pnn_width", self.pnn_width, 0.001, 16.0)
        _whole("adapter_rank", self.adapter_rank, 1)
        if self.memory_bytes is not None:
            _whole("memory_bytes", self.memory_bytes, 1)
        self._check_cpg()
        _within("packnet_prune", self.packnet_prune, 0.0, 0.99)
        _within("packnet_retrain", self.packnet_retrain, 0.0, 10.0)
        _within("wsn_density", self.wsn_density, 0.05, 1.0)  # below, a file would take too much memory for its size
        _within("supsup_density", self.supsup_density, 0.0, 1.0)
        for name in ("wsn_start", "supsup_start", "piggyback_rate", "ksm_rate"):
            _above(name, getattr(self, name), 0.0)
        _within("piggyback_threshold", self.piggyback_threshold, -1e9, 1e9)
        _above("piggyback_start", self.piggyback_start, self.piggyback_threshold)
        _above("ksm_start", self.ksm_start, 0.005)
        _within("margin", self.margin, -100.0, 100.0)
        _within("glance", self.glance, 0.0, 0.9)
        _within("hopeless", self.hopeless, 0.0, 100.0)
        if self.glance and not (self.anew and self.trial):
            raise ConfigError(
                f"what follows a glance must not go on from it, so glance needs anew=True and trial=True, or to be 0, "
                f"but got {self.glance}"
            )
        if self.density is not None:
            _within("density", self.density, 0.0, 1.0)
        _within("holdout", self.holdout, 0.01, 0.9)
        _within("decide", self.decide, 0.01, 1.0)
        if self.decide != 1.0 and not self.refit:
            raise ConfigError("decide shortens the trainings before a refit, so it needs refit=True")
        if not self.trial and not self.refit:
            raise ConfigError("trial=False leaves the training of an expansion to the refit, so it needs refit=True")
        if self.threads is not None:
            _whole("threads", self.threads, 1)
        _whole("seed", self.seed, 0)
        _whole("lanes", self.lanes, 1)
        check_target(self.target)

    def _check_cpg(self) -> None:
        _within("cpg_train_goal", self.cpg_train_goal, 0.0, 100.0)
        for name in ("cpg_step", "cpg_pick_start", "cpg_pick_rate", "cpg_repick_rate", "cpg_prune_rate"):
            _above(name, getattr(self, name), 0.0)
        for name in ("cpg_prune_epochs", "cpg_prune_ramp", "cpg_retrain_epochs"):
            _within(name, getattr(self, name), 0.0, 10.0 if name != "cpg_prune_ramp" else 1.0)
        for name in ("cpg_prune_step", "cpg_prune_most"):
            _within(name, getattr(self, name), 0.01, 0.99)
        _whole("cpg_patience", self.cpg_patience, 1)
        if self.cpg_tasks is not None:
            _whole("cpg_tasks", self.cpg_tasks, 1)

    def recipe_of(self, number: int) -> Recipe:
        """The recipe of the task of this number, counted from 1: the first ones may get more."""
        recipe = self.recipe
        if number > self.early:
            return recipe
        epochs = max(1, round(self.early_epochs * recipe.epochs))
        return dataclasses.replace(recipe, epochs=epochs, turns=recipe.turns or self.early_turns)

    def deciding(self, number: int) -> Recipe:
        """The same for trainings that are only scored on held-out images: shorter and plain, where all data follows."""
        if not self.refit:
            return self.recipe_of(number)
        return dataclasses.replace(self.recipe, epochs=max(1, round(self.decide * self.recipe.epochs)))

    def recipes(self, number: int) -> list[Recipe]:
        """Of a task's trainings: the one that is scored, then the one on all data where it follows."""
        return [self.deciding(number), *([self.recipe_of(number)] if self.refit else [])]

    def replace(self, **changes: Any) -> Config:
        """A copy with these settings changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain data for run.json and the model file."""
        data = dataclasses.asdict(dataclasses.replace(self, target=0.0))
        data["target"] = describe_target(self.target)
        return data

    def for_file(self) -> dict[str, Any]:
        """The same for a model file, which is of no device, and not of the folder that its targets lay in."""
        data = self.to_json()
        del data["device"]
        if is_target_file(self.target):
            data["target"] = Path(str(self.target)).name
        return data

    @staticmethod
    def from_json(data: dict[str, Any]) -> Config:
        """The settings that `to_json` wrote."""
        try:
            return Config(**{**data, "recipe": Recipe(**data["recipe"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"these settings are not ours: {error}") from error


def describe_target(target: Target) -> float | str:
    """A target as plain data; what only lives in memory is named."""
    if isinstance(target, float | int):
        return float(target)
    if isinstance(target, str):
        return target
    return str(target) if isinstance(target, Path) else "callable"


def is_target_file(target: Any) -> bool:
    """Whether a target is a result.json's path."""
    return isinstance(target, Path) or (isinstance(target, str) and target.endswith(".json"))


def check_target(target: Target) -> None:
    """Refuse a target that can never be met or found."""
    if isinstance(target, bool) or (isinstance(target, float | int) and not 0 <= target <= 100):
        raise ConfigError(f"a target is an accuracy from 0 to 100, but got {target}")
    if isinstance(target, str) and not is_target_file(target) and target not in (*TARGETS, "callable"):
        raise unknown("target", target, (*TARGETS, "a number", "a result.json"))


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise unknown(name, str(value), choices)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, but got {value!r}")


def _whole(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name} must be a whole number of at least {low}, but got {value!r}")


def _above(name: str, value: Any, low: float) -> None:
    if not isinstance(value, float | int) or not value > low or not math.isfinite(value):
        raise ConfigError(f"{name} must be above {low:g}, but got {value!r}")


def _within(name: str, value: Any, low: float, high: float) -> None:
    if not isinstance(value, float | int) or not low <= value <= high:
        raise ConfigError(f"{name} must lie between {low:g} and {high:g}, but got {value!r}")
