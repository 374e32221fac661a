"""Fine-tune: a copy of a random earlier task's network, trained on. It is a copy, so nothing is forgotten."""

from typing import ClassVar

from grown.methods.plain_method import PlainMethod


class Finetune(PlainMethod):
    """A 1x network per task, from the second task on a copy of an earlier one's."""

    name: ClassVar[str] = "finetune"

    def parent(self, task: str) -> str | None:
        """An earlier task, drawn by seed and name."""
        return self.training.random_parent(task)
