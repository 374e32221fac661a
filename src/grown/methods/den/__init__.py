"""Dynamically expandable networks (Yoon, Yang, Lee and Hwang, 2018)."""

from grown.methods.den.method import DEN

__all__ = ["DEN"]
