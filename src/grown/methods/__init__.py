"""GROWN and its rivals, each registered by one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grown.errors import unknown
from grown.io import container
from grown.io.state import State
from grown.methods.adapter import Adapter
from grown.methods.ewc import EWC
from grown.methods.finetune import Finetune
from grown.methods.grow import Grow
from grown.methods.grown import Learner
from grown.methods.joint import Joint
from grown.methods.lwf import LwF
from grown.methods.mas import MAS
from grown.methods.pnn import PNN
from grown.methods.replay import Replay
from grown.methods.scratch import Scratch
from grown.methods.sequential import Sequential
from grown.methods.si import SI

METHODS: dict[str, Any] = {
    "grown": Learner,
    "scratch": Scratch,
    "finetune": Finetune,
    "joint": Joint,
    "sequential": Sequential,
    "ewc": EWC,
    "si": SI,
    "mas": MAS,
    "lwf": LwF,
    "replay": Replay,
    "adapter": Adapter,
    "grow": Grow,
    "pnn": PNN,
}


def method(name: str) -> Any:
    """A method's class by its name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def load(path: str | Path) -> Any:
    """The learner in a model file; the file is checked, and no code of its author is run."""
    tensors, meta = container.load(path)
    learner = method(str(meta.get("method")))(None)
    learner.load_state(State(tensors, meta))
    return learner
