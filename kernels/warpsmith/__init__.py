"""warpsmith: GPU kernels for PyTorch, from the naive rung to the peak, under one namespace.

import warpsmith
y = warpsmith.rms_norm(x, weight)
print(warpsmith.which("rms_norm", x, weight))
"""

from warpsmith.core import catalogue, dispatch
from warpsmith.core.dispatch import Choice, FallbackWarning, which

# Families in listing order, in which their operators enter the catalogue.
# isort: off
from warpsmith.elementwise import *  # noqa: F403
from warpsmith.elementwise import __all__ as _elementwise
from warpsmith.transform import *  # noqa: F403
from warpsmith.transform import __all__ as _transform
from warpsmith.reduce import *  # noqa: F403
from warpsmith.reduce import __all__ as _reduce
from warpsmith.softmax import *  # noqa: F403
from warpsmith.softmax import __all__ as _softmax
from warpsmith.norm import *  # noqa: F403
from warpsmith.norm import __all__ as _norm
from warpsmith.loss import *  # noqa: F403
from warpsmith.loss import __all__ as _loss
from warpsmith.gemm import *  # noqa: F403
from warpsmith.gemm import __all__ as _gemm
# isort: on

__version__ = "0.1.0"
__all__ = [
    "Choice",
    "FallbackWarning",
    "catalogue",
    "dispatch",
    "which",
    *_elementwise,
    *_gemm,
    *_loss,
    *_norm,
    *_softmax,
    *_reduce,
    *_transform,
]
