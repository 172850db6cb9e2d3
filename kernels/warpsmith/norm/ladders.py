"""The ladders of the row-wise normalisations, and what their rungs take; mirrors csrc/norm and
csrc/row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from warpsmith.core.catalogue import PACK, Rung
from warpsmith.spec.rows import (
    MOST_ROWS,
    address,
    as_rows,
    needs_held,
    needs_streamed,
    suits_streamed,
    tiles_rows,
    tiles_weight,
)

_BOTH = ("f32", "same")
_ALIGNED = {False: "needs rows and weight", True: "needs rows, weight and bias"}

# --- what the rungs take --------------------------------------------------------------------------


def _pack_of(*tensors: Tensor | None) -> int:
    """Values of the widest of them in 128 bits."""
    return 16 // max(t.element_size() for t in tensors if t is not None)


def _tiled(width: int, rows: Sequence[Tensor | None], parameters: Sequence[Tensor | None]) -> bool:
    """Whether accesses of `width` values tile the rows, and the parameters of their columns."""
    given = [x for x in rows if x is not None]
    if given[0].numel() == 0:
        return True
    return all(tiles_rows(x, width) for x in given) and all(
        tiles_weight(p, width) for p in parameters
    )


def _row_count(x: Tensor) -> int:
    return x.numel() // x.shape[-1] if x.numel() else 0


def _row_bytes(x: Tensor, residual: Tensor | None = None) -> int:
    return x.shape[-1] * (16 // _pack_of(x, residual)) if x.numel() else 0


def _lies_like_output(x: Tensor) -> bool:
    """Whether the rows of `x` lie like those of a contiguous output between 16-byte borders."""
    rows = as_rows(x)
    apart = 0 if rows.rows == 1 else (rows.stride - rows.cols) * x.element_size()
    return rows.copied or (address(x) % 16 == 0 and apart % 16 == 0)


class _Forward:
    """Conditions of the forward rungs.

    Args:
        layer: whether there is a mean, which makes shorter rows worth a cluster.
        added: whether rows are sums of two tensors.
        alone: whether rows without a residual are held by half as many registers, and left to
            blocks, however long they are.
    """

    def __init__(self, layer: bool, added: bool, alone: bool = False) -> None:
        self.layer, self.added, self.alone = layer, added, alone
        self.aligned = _ALIGNED[layer or added or alone]

    def _sums(self, residual: Tensor | None) -> bool:
        return self.added if not self.alone else residual is not None

    def needs_pairs(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None = None
    ) -> str | None:
        fits = _tiled(2, (x,), (weight, bias))
        return None if fits else f"{self.aligned} aligned to 2 elements"

    def needs_packs(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> str | None:
        fits = _tiled(_pack_of(x, residual), (x, residual), (weight, bias))
        return None if fits else f"{self.aligned} aligned to 16 bytes"

    def needs_registers(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> str | None:
        return self.needs_packs(x, weight, bias, residual) or needs_held(
            _row_count(x), _row_bytes(x, residual), 1 + self._sums(residual)
        )

    def needs_cluster(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> str | None:
        rows = 0 if self.added or self.alone else _row_count(x)  # others walk over rows
        return self.needs_packs(x, weight, bias, residual) or needs_streamed(
            rows, _row_bytes(x, residual)
        )

    def needs_peeled(self, x: Tensor) -> str | None:
        if x.numel() == 0:
            return None
        if not _lies_like_output(x):
            return "needs rows of x that lie like those of y between 16-byte borders"
        most = 16 * (4 * 320 * 10 - 1)
        if _row_bytes(x) > most:
            return f"needs rows of at most {most} bytes"
        return None if _row_count(x) <= MOST_ROWS // 4 else "needs at most 2^29 - 1 rows"

    def suits_peeled(self) -> str | None:
        return "no GPU has run it yet"

    def suits_cluster(self, x: Tensor, residual: Tensor | None = None) -> str | None:
        if self.alone and residual is None:
            return "without a residual too few bytes are on their way"
        inputs = 2 if self.layer or self.added or self.alone else 1
        return suits_streamed(_row_bytes(x, residual), inputs)


class _Backward:
    """Conditions of the backward rungs.

    Args:
        needs_bias: whether the bias is read.
    """

    def __init__(self, needs_bias: bool = False) -> None:
        self.needs_bias = needs_bias

    def at_most(self, cols: int) -> Callable[..., str | None]:
        def condition(
            grad: Tensor,
            weight: Tensor | None,
            bias: Tensor | None = None,
            grad_h: Tensor | None = None,
            x: Tensor | None = None,
            y: Tensor | None = None,
            h: Tensor | None = None,
        ) -> str | None:
            rows = (grad, grad_h, x, y, h)
            width = _pack_of(grad, x, y, h)
            read = bias if self.needs_bias else None
            if not _tiled(width, rows, (weight, read)):
                return f"{_ALIGNED[read is not None]} aligned to 16 bytes"
            fits = grad.numel() == 0 or grad.shape[-1] <= cols
            return None if fits else f"needs at most {cols} columns"

        return condition

    @staticmethod
    def suits_cluster(grad: Tensor) -> str | None:
        return None if grad.shape[-1] > 8192 else "the row fits a block's registers"


# --- the ladders ----------------------------------------------------------------------------------


def _packed(name: str, story: str, **more: object) -> Rung:
    """A rung of 128-bit accesses; `technique` is its name unless that says it all."""
    technique = "" if name == "pack" else name
    settings: dict[str, object] = {"width": PACK, "pack": True, "technique": technique} | more
    return Rung(name, story, **settings)  # type: ignore[arg-type]


def plain(layer: bool) -> tuple[Rung, ...]:
    """Of rms_norm and layer_norm."""
    needs = _Forward(layer, added=False)
    kept = "weight and bias" if layer else "its weight"
    return (
        Rung(
            "tree",
            "a block per row, summed by a tree in shared memory" + ", three sweeps" * layer,
            technique="tree",
            accumulators=_BOTH,
        ),
        Rung(
            "shuffle",
            f"warp shuffles replace the tree: one barrier {'a sum ' * layer}instead of eight",
            accumulators=_BOTH,
        ),
        Rung(
            "x2",
            "two 16-bit values an access",
            dtypes=("f16", "bf16"),
            width=2,
            accumulators=_BOTH,
            when=needs.needs_pairs,
        ),
        Rung(
            "unroll",
            "four or eight separate loads in flight per thread",
            width=PACK,
            accumulators=_BOTH,
        ),
        _packed(
            "peeled_registers",
            "rows that begin anywhere, packs as they lie, held by a block or by a cluster",
            min_sm=90,
            when=needs.needs_peeled,
            suits=needs.suits_peeled,
        ),
        _packed(
            "pack",
            f"128-bit accesses, the row read {'three times' if layer else 'twice'}",
            accumulators=_BOTH,
            when=needs.needs_packs,
        ),
        *(
            [
                _packed(
                    "welford",
                    "mean and variance in one sweep, the row read twice",
                    when=needs.needs_packs,
                )
            ]
            * layer
        ),
        _packed(
            "registers",
            "the row held in registers and read once, short rows sharing a block",
            when=needs.needs_registers,
            seeds=() if layer else ("batch_invariant_rms_norm_{dtype}",),
        ),
        _packed(
            "cluster",
            f"long rows streamed through a cluster, which keeps {kept} and reads rows ahead",
            min_sm=90,
            when=needs.needs_cluster,
            suits=needs.suits_cluster,
        ),
    )


def rms_with_rstd() -> tuple[Rung, ...]:
    """Of rms_norm_with_rstd, which sums in f32 only."""
    rungs = {rung.name: rung for rung in plain(layer=False)}
    return (
        Rung("shuffle", "a block per row, summed by warp shuffles"),
        rungs["peeled_registers"],
        _packed("pack", rungs["pack"].story, when=rungs["pack"].when),
        _packed("registers", rungs["registers"].story, when=rungs["registers"].when),
        rungs["cluster"],
    )


def residual(layer: bool, alone: bool = False) -> tuple[Rung, ...]:
    """Of norms of a sum; `alone` of those into fp8, some of which add nothing."""
    needs = _Forward(layer, added=not alone, alone=alone)
    sweeps = "three sweeps" if layer else "two sweeps"
    return (
        Rung(
            "naive", f"a block per row, one value an access, {sweeps}{'' if alone else ' over h'}"
        ),
        _packed("pack", "128-bit accesses, h read back", when=needs.needs_packs),
        _packed(
            "registers",
            "the row held in registers: two reads and two writes, short rows sharing a block",
            when=needs.needs_registers,
        ),
        _packed(
            "cluster",
            "long rows split over a cluster that walks over rows, the next one on its way",
            min_sm=90,
            when=needs.needs_cluster,
            suits=needs.suits_cluster,
        ),
    )


def backward(layer: bool, from_output: bool, added: bool) -> tuple[Rung, ...]:
    """Of all gradients."""
    needs = _Backward(needs_bias=layer and from_output)
    sums = "dw and db" if layer else "dw"
    naive = f"a block per row for dx, then column sums for {sums}"
    held = f"persistent blocks, {sums} in registers, the next rows on their way meanwhile"
    if added:
        naive = "a block per row for dh, then column sums for the weight"
        held = "persistent blocks, weight gradients in registers, the next rows on their way"
    return (
        Rung("naive", naive),
        _packed("registers", held, when=needs.at_most(8192)),
        _packed(
            "cluster",
            "long rows split over a cluster, their sums through distributed shared memory",
            min_sm=90,
            when=needs.at_most(262144),
            suits=needs.suits_cluster,
        ),
    )
