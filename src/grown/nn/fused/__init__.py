"""Triton kernels for a GPU.

Each stands for a few lines of plain PyTorch (`nn/masks.py`, `methods/masked`, `nn.BatchNorm2d` with `nn.ReLU`,
`nn.MaxPool2d`, `nn.LocalResponseNorm`), which remain the reference and run wherever Triton does not. Weights and images
are channels-last in memory: (out, k, in) and (n, h, w, c).
"""

from grown.nn.fused.elements import fused_elements, smallest
from grown.nn.fused.lrn import lrn, ordered_lrn
from grown.nn.fused.masks import fused_kernels
from grown.nn.fused.norms import norm_relu
from grown.nn.fused.pools import max_pool

__all__ = ["fused_elements", "fused_kernels", "lrn", "max_pool", "norm_relu", "ordered_lrn", "smallest"]
