"""Additive parameter decomposition (Yoon, Kim, Yang and Hwang, 2020)."""

from grown.methods.apd.method import APD

__all__ = ["APD"]
