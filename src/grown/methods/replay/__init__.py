"""Experience replay: a few images of every earlier class are kept and trained on again."""

from grown.methods.replay.method import Replay

__all__ = ["Replay"]
