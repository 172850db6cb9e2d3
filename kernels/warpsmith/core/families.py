"""The families in listing order: each is a package under `warpsmith` and one compiled library."""

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "transform",
    "reduce",
    "softmax",
    "norm",
    "loss",
    "gemm",
)
