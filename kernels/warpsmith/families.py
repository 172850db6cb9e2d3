"""The families in the order in which they are listed: each is a package under `warpsmith` and one compiled library."""

FAMILIES: tuple[str, ...] = ("elementwise", "norm")
