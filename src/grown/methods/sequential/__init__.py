"""Sequential: one network, trained on each task in turn with nothing to protect the earlier ones."""

from typing import ClassVar

from grown.methods.shared import SharedMethod


class Sequential(SharedMethod):
    """One network trained on and on, without protection: the lower end of the scale."""

    name: ClassVar[str] = "sequential"
