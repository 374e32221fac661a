"""Joint: all tasks at once, by one plain network. Not continual; the upper reference of the tables."""

from grown.methods.joint.method import Joint

__all__ = ["Joint"]
