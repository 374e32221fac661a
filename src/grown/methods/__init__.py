"""GROWN and its rivals, each registered by one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grown.errors import unknown
from grown.io import container
from grown.io.state import State
from grown.methods.adapter import Adapter
from grown.methods.apd import APD
from grown.methods.cpg import CPG
from grown.methods.den import DEN
from grown.methods.ewc import EWC
from grown.methods.finetune import Finetune
from grown.methods.grow import Grow
from grown.methods.grown import Learner
from grown.methods.joint import Joint
from grown.methods.ksm import KSM
from grown.methods.lwf import LwF
from grown.methods.mas import MAS
from grown.methods.packnet import PackNet
from grown.methods.piggyback import Piggyback
from grown.methods.pnn import PNN
from grown.methods.replay import Replay
from grown.methods.scratch import Scratch
from grown.methods.sequential import Sequential
from grown.methods.si import SI
from grown.methods.supsup import SupSup
from grown.methods.wsn import WSN

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
    "cpg": CPG,
    "packnet": PackNet,
    "wsn": WSN,
    "piggyback": Piggyback,
    "ksm": KSM,
    "supsup": SupSup,
    "apd": APD,
    "den": DEN,
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
