"""Adapter: each later task is a low-rank update of the first task's frozen network. What a practitioner would try."""

from grown.methods.adapter.method import Adapter

__all__ = ["Adapter"]
