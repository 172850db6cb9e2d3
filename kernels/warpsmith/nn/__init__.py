"""Modules in the place of PyTorch's: the same arguments, parameters and state dicts, computed here.

    from warpsmith import nn

    norm = nn.RMSNorm(4096, eps=1e-6)
    mlp = nn.SwiGLU(4096, 14336)

`warpsmith.patch` puts the same computations into a model that exists.
"""

from warpsmith.nn.layers import Dropout, GeGLU, Linear, SwiGLU
from warpsmith.nn.losses import CrossEntropyLoss, FusedLinearCrossEntropyLoss
from warpsmith.nn.norms import AddLayerNorm, AddRMSNorm, GroupNorm, LayerNorm, RMSNorm

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "CrossEntropyLoss",
    "Dropout",
    "FusedLinearCrossEntropyLoss",
    "GeGLU",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "SwiGLU",
]
