"""Scratch: a network of its own for each task, trained from nothing. The paper's first baseline and its target."""

from typing import ClassVar

from grown.data.task import Task
from grown.methods.plain_method import PlainMethod


class Scratch(PlainMethod):
    """A 1x network per task."""

    name: ClassVar[str] = "scratch"

    def parent(self, task: str) -> str | None:  # noqa: ARG002
        """Nobody."""
        return None

    def foresee(self, tasks: list[Task]) -> None:
        """Train the networks of these tasks side by side, which a GPU does in less time than one by one.

        On the CPU nothing is gained, so there each task is trained when it is learned.
        """
        if self.config.device != "cpu":
            known = {name: self.training.networks[name] for name in self.tasks}
            self._check([task for task in tasks if task.name not in known])
            self._train(tasks)  # all, in their order, since those that a journal kept are given back in it
            self.training.networks |= known
            for name in known:
                del self._trained[name]
