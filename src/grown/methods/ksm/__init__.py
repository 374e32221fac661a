"""KSM: a soft mask on each kernel of a frozen network, which is the first task's (Yang and others, 2021)."""

from grown.methods.ksm.method import KSM

__all__ = ["KSM"]
