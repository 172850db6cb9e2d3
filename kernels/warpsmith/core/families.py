"""The families in listing order: each is a package under `warpsmith` and one compiled library."""

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "reduce",
    "softmax",
    "norm",
    "loss",
    "gemm",
    "attention",
)
