"""Scratch: a network of its own for each task, trained from nothing. The paper's first baseline and its target."""

from typing import ClassVar

from grown.methods.plain_method import PlainMethod


class Scratch(PlainMethod):
    """A 1x network per task."""

    name: ClassVar[str] = "scratch"

    def parent(self, task: str) -> str | None:  # noqa: ARG002
        """Nobody."""
        return None
