"""CPG: compact what a task learned, pick from what earlier tasks left, grow if that does not suffice."""

from grown.methods.cpg.method import CPG

__all__ = ["CPG"]
