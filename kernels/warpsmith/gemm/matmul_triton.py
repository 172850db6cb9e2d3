"""Matrix products in Triton: tiles in grouped order, k split where the tiles are too few. 16-bit
operands that TMA can read come by descriptors (spec/triton/boxes.py), others by pointers.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.triton import boxes, functions
from warpsmith.spec.triton.boxes import boxes_of, boxes_of_both, load_box
from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import INTERPRETED


def _shape_boxes(args: dict[str, Any]) -> None:
    """Gives the descriptors of a launch the tile that is tried."""
    bm, bn, bk = args["BM"], args["BN"], args["BK"]
    args["of_a"].block_shape = [bk, bm] if args["A_TURNED"] else [bm, bk]
    args["of_b"].block_shape = [bk, bn] if args["B_TURNED"] else [bn, bk]
    if args["D_BOXED"]:
        args["of_d"].block_shape = [bm, bn]


class Tile(NamedTuple):
    """Of the product, what a program computes."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def config(self, boxed: bool = False) -> triton.Config:
        meta = {"BM": self.m, "BN": self.n, "BK": self.k}
        hook = _shape_boxes if boxed else None
        return triton.Config(meta, self.warps, self.stages, pre_hook=hook)


#: 16-bit operands, for tensor cores.
HALVES: Mapping[str, Tile] = {
    "wide": Tile(128, 256, 64, 8, 3),  # the most arithmetic for a byte of shared memory
    "tall": Tile(256, 128, 64, 8, 3),  # the same where m is the larger
    "square": Tile(128, 128, 64, 4, 3),  # two blocks on a multiprocessor hide each other's epilogue
    "deep": Tile(128, 128, 32, 4, 5),  # shorter steps, more of them under way
    "half": Tile(128, 64, 64, 4, 4),  # twice the tiles, where they fill the last wave badly
    "small": Tile(64, 64, 64, 4, 4),  # few tiles in all
    "flat": Tile(16, 64, 128, 4, 4),  # a handful of rows: bound by the weights
}
#: Those of HALVES that are tried with descriptors; the depth of each divides BOX_DEPTH.
BOXED = ("wide", "tall", "square", "half")
BOX_DEPTH = 64
#: f32 operands, which no tensor core multiplies exactly.
SINGLES: Mapping[str, Tile] = {
    "square": Tile(128, 128, 16, 8, 3),  # 64 sums a thread
    "wide": Tile(64, 128, 16, 4, 3),
    "small": Tile(64, 64, 16, 4, 3),
    "flat": Tile(16, 64, 32, 4, 3),
}
#: f32 operands as TF32: half of HALVES' depth for the same bytes, and twice the sums (see DEPTH).
TF32S: Mapping[str, Tile] = {
    "wide": Tile(128, 256, 32, 16, 3),
    "square": Tile(128, 128, 32, 8, 3),
    "half": Tile(128, 64, 32, 4, 4),
    "small": Tile(64, 64, 32, 4, 4),
    "flat": Tile(16, 64, 64, 4, 4),
}
#: Values of k of f32 operands that are added up by themselves: rounding errors grow with the length
#: of a sum, in tensor cores all the more, which add by truncation (matmul_tf32.h). A multiple of
#: every tile's k.
DEPTH = 128
#: The same on tensor cores, where the time of a join counts.
LONG_DEPTH = 1024
#: From so many multiplications on, trying all tiles pays. Smaller tiles fill a GPU as well as two
#: parts of k do, not as well as more.
TUNED_FROM, TUNED_PARTS = 1 << 30, 2
#: Tiles of a column that neighbouring programs take together, so that they share rows of b in L2.
GROUP = 8
#: A part of k shorter than this is not worth a program and a sum over the parts.
SHORTEST_PART = 512
#: Elements that a program of the sum over the parts takes.
BLOCK = 1024


@triton.jit
def finish(
    value, c_ptr, batch, row, col, mask, c_batch, c_row, c_col, alpha, beta,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """activation(alpha value + beta c)"""
    value *= alpha
    if HAS_C:
        c = tl.load(c_ptr + batch * c_batch + row * c_row + col * c_col, mask=mask, other=0.0)
        value += beta * decode(c, FORMAT, False)
    if ACTIVATION is not None:
        value = ACTIVATION(value, 0.0, c_ptr.dtype.element_ty == tl.float32)
    return value


@triton.jit
def round_to_tf32(x):
    """To 10 bits of mantissa, to nearest, ties away from zero; NaN and infinities stay."""
    bits = x.to(tl.int32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    return tl.where(finite, (bits + 0x1000) & -0x2000, bits).to(tl.float32, bitcast=True)


@triton.jit
def matmul_kernel(
    of_a,  # [batch, m, k], a pointer, or where BOXED a descriptor of all products
    of_b,  # [batch, k, n], the same
    c_ptr,  # [batch, m, n], strides may be 0
    of_d,  # [batch, m, n], or [parts, batch, m, n] f32; where D_BOXED the descriptor of [m, n]
    batches, m, n, k, part,
    a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row, c_col,
    a_step, b_step,  # rows of the descriptors from one product to the next
    alpha, beta,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, FORMAT: tl.constexpr, OUT: tl.constexpr,
    SPLIT: tl.constexpr, TF32: tl.constexpr, DEPTH: tl.constexpr,
    BOXED: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, D_BOXED: tl.constexpr,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tiles of the products, as many at a time as there are programs; of a part of k where SPLIT.
    Unless DEPTH is 0, sums are of DEPTH values of k, and sums of such sums.
    """
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, k)
    tiles = batches * tiles_m * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=BOXED):
        # The product and the tile: GROUP rows of tiles are walked column by column.
        index = tile % (tiles_m * tiles_n)
        product = tile // (tiles_m * tiles_n)
        batch = product.to(tl.int64)
        group = index // (GROUP * tiles_n)
        rows = tl.minimum(tiles_m - group * GROUP, GROUP)
        in_group = index % (GROUP * tiles_n)
        tile_m, tile_n = group * GROUP + in_group % rows, in_group // rows

        row = (tile_m.to(tl.int64) * BM + tl.arange(0, BM))[:, None]  # [BM, 1]
        col = (tile_n.to(tl.int64) * BN + tl.arange(0, BN))[None, :]  # [1, BN]
        if not BOXED:
            inner = (first + tl.arange(0, BK)).to(tl.int64)
            a_ptr = of_a + batch * a_batch + row * a_row + inner[None, :] * a_col  # [BM, BK]
            b_ptr = of_b + batch * b_batch + inner[:, None] * b_row + col * b_col  # [BK, BN]
        total = tl.zeros([BM, BN], dtype=tl.float32)
        sums = tl.zeros([BM, BN], dtype=tl.float32)
        for start in range(first, last, BK):
            if BOXED:
                a = load_box(of_a, product * a_step, tile_m * BM, start, A_TURNED)
                b = load_box(of_b, product * b_step, tile_n * BN, start, B_TURNED).T
            else:
                within = tl.arange(0, BK) < last - start
                a = tl.load(a_ptr, mask=(row < m) & within[None, :], other=0)
                b = tl.load(b_ptr, mask=within[:, None] & (col < n), other=0)
                a_ptr += tl.cast(a_col, tl.int64) * BK
                b_ptr += tl.cast(b_row, tl.int64) * BK
            if TF32:
                sums = tl.dot(round_to_tf32(a), round_to_tf32(b), sums, input_precision="tf32")
            elif INTERPRETED:
                sums += tl.dot(decode(a, FORMAT, False), decode(b, FORMAT, False))
            else:
                sums = tl.dot(a, b, sums, input_precision="ieee")
            if DEPTH > 0:  # noqa: SIM102 (without it, no condition is compiled)
                if (start + BK - first) % DEPTH == 0:
                    total += sums
                    sums = tl.zeros([BM, BN], dtype=tl.float32)
        total = total + sums if DEPTH > 0 else sums

        inside = (row < m) & (col < n)
        if SPLIT:
            plane = split.to(tl.int64) * batches + batch
            tl.store(of_d + (plane * m + row) * n + col, total, mask=inside)
        else:
            value = finish(
                total, c_ptr, batch, row, col, inside, c_batch, c_row, c_col, alpha, beta,
                HAS_C, ACTIVATION, FORMAT,
            )  # fmt: skip
            if D_BOXED:
                d = encode(value, OUT, False, of_d.dtype)
                of_d.store([tile_m * BM, tile_n * BN], d)
            else:
                d = encode(value, OUT, False, of_d.dtype.element_ty)
                tl.store(of_d + (batch * m + row) * n + col, d, mask=inside)


@triton.jit
def sum_parts_kernel(
    part_ptr,  # [parts, batch, m, n] f32
    c_ptr,
    d_ptr,  # [batch, m, n]
    parts, total, m, n,
    c_batch, c_row, c_col, alpha, beta,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, FORMAT: tl.constexpr, OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The parts of k added in order, and the epilogue."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    value = tl.zeros([BLOCK], dtype=tl.float32)
    for p in range(parts):
        value += tl.load(part_ptr + tl.cast(p, tl.int64) * total + at, mask=inside, other=0.0)
    col, row, batch = at % n, at // n % m, at // n // m
    value = finish(
        value, c_ptr, batch, row, col, inside, c_batch, c_row, c_col, alpha, beta,
        HAS_C, ACTIVATION, FORMAT,
    )  # fmt: skip
    tl.store(d_ptr + at, encode(value, OUT, False, d_ptr.dtype.element_ty), mask=inside)


_KEY = ["m", "n", "k", "a_col", "b_col"]


def _trying(tiles: Iterable[Tile], boxed: bool = False) -> Any:
    return triton.autotune([t.config(boxed) for t in tiles], key=_KEY)(matmul_kernel)


_tuned_halves = _trying(HALVES.values())
_tuned_boxes = _trying((HALVES[name] for name in BOXED), boxed=True)
_tuned_singles = _trying(SINGLES.values())
_tuned_tf32s = _trying(TF32S.values())
_ACTIVATIONS = {
    "none": None,
    "relu": functions.relu,
    "gelu": functions.gelu,
    "gelu_tanh": functions.gelu_tanh,
    "silu": functions.silu,
}


def _tile(tiles: Mapping[str, Tile], m: int, n: int) -> Tile:
    if m <= tiles["flat"].m:
        return tiles["flat"]
    least = tiles["square"].m
    return tiles["small"] if m < least or n < least else tiles["square"]


def _parts(tile: Tile, m: int, n: int, k: int, batch: int, x: Tensor) -> int:
    """Into how many parts k is split, so that the programs fill the GPU."""
    if INTERPRETED.value:
        return 2 if k >= 2 * SHORTEST_PART else 1
    programs = math.ceil(m / tile.m) * math.ceil(n / tile.n) * batch
    return max(1, min(boxes.multiprocessors(x.device) // programs, k // SHORTEST_PART))


def _run(
    a: Tensor,
    b: Tensor,
    out_shape: tuple[int, ...],
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    tf32: bool = False,
    batch_invariant: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`a` and `b` have at least two dimensions; `out_shape` is that of the result,
    `dtype` too, where it is not that of `a`.

    `batch_invariant`: one tile for every size, and no parts of k.
    """
    out = torch.empty(out_shape, dtype=dtype or a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    (m, k), n = a.shape[-2:], b.shape[-1]
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    batch = math.prod(lead)
    a = a.expand(*lead, m, k).reshape(batch, m, k)
    b = b.expand(*lead, k, n).reshape(batch, k, n)
    c = None if c is None else c.expand(*lead, m, n).reshape(batch, m, n)
    integers = INTERPRETED.value and a.dtype == torch.bfloat16
    d = out
    if integers:
        a, b = a.view(torch.int16), b.view(torch.int16)
        d = d.view(torch.int16) if d.dtype == torch.bfloat16 else d
        c = None if c is None else c.view(torch.int16)
    added = d if c is None else c
    epilogue = {
        "HAS_C": c is not None,
        "ACTIVATION": _ACTIVATIONS[activation],
        "FORMAT": "bf16" if integers else "",
        "OUT": "bf16" if integers and out.dtype == torch.bfloat16 else "",
    }
    singles = a.dtype == torch.float32
    tiles, tuned = HALVES, _tuned_halves
    if singles:
        tiles, tuned = (TF32S, _tuned_tf32s) if tf32 else (SINGLES, _tuned_singles)
    tile = tiles["square"] if batch_invariant else _tile(tiles, m, n)
    parts = 1 if batch_invariant else _parts(tile, m, n, k, batch, out)
    tunes = parts <= TUNED_PARTS and not (batch_invariant or INTERPRETED.value)
    long = tunes and m * n * k * batch >= TUNED_FROM
    depth = (LONG_DEPTH if tf32 and long else DEPTH) if singles else 0
    c_strides = (0, 0, 0) if c is None else c.stride()
    scales = (alpha, beta)
    few = m <= tiles["flat"].m
    boxed = None if batch_invariant or few else boxes_of_both(a, b.mT, BOX_DEPTH)
    # Shared memory holds a tile of d beside the ring of 16-bit operands, not one of c or of f32.
    stores = boxed is not None and batch == 1 and c is None and d.element_size() == 2
    of_d = boxes_of(d.view(1, m, n), 1) if stores else None

    def arguments(tile: Tile, target: Tensor, part: int) -> tuple[Any, ...]:
        """All but the tile's size, which descriptors have as well."""
        left, right, to = a, b, target
        if boxed:
            left, right = boxed[0].of(tile.m, tile.k), boxed[1].of(tile.n, tile.k)
            to = of_d.of(tile.m, tile.n) if of_d and target is d else target
        steps = (boxed[0].step, boxed[1].step) if boxed else (0, 0)
        strides = (*a.stride(), *b.stride(), *c_strides)
        return (left, right, added, to, batch, m, n, k, part, *strides, *steps, *scales)

    operands = {
        "TF32": tf32,
        "DEPTH": depth,
        "BOXED": boxed is not None,
        "A_TURNED": bool(boxed and boxed[0].turned),
        "B_TURNED": bool(boxed and boxed[1].turned),
    }

    def programs(bm: int, bn: int) -> int:
        tiles = batch * math.ceil(m / bm) * math.ceil(n / bn)
        beside = 1 if bm * bn > 128 * 128 else 2  # of blocks of 4 warps, two on a multiprocessor
        return min(tiles, beside * boxes.multiprocessors(out.device)) if boxed else tiles

    with torch.cuda.device_of(out):
        if long:
            tuned = _tuned_boxes if boxed else tuned
            tuned[lambda t: (programs(t["BM"], t["BN"]), 1)](
                *arguments(tile, d, k), **epilogue, **operands,
                SPLIT=False, D_BOXED=of_d is not None, GROUP=GROUP,
            )  # fmt: skip
            return out
        part = triton.cdiv(triton.cdiv(k, parts), tile.k) * tile.k
        parts = max(1, triton.cdiv(k, part)) if part else 1
        target = d
        if parts > 1:
            shape = (parts, batch, m, n)
            target = torch.empty(shape, dtype=torch.float32, device=out.device)
        matmul_kernel[(programs(tile.m, tile.n), parts)](
            *arguments(tile, target, part), **epilogue, **operands,
            SPLIT=parts > 1, D_BOXED=of_d is not None and parts == 1, GROUP=GROUP,
            BM=tile.m, BN=tile.n, BK=tile.k, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if parts > 1:
            total = out.numel()
            sum_parts_kernel[(triton.cdiv(total, BLOCK),)](
                target, added, d, parts, total, m, n, *c_strides, *scales, **epilogue, BLOCK=BLOCK
            )
    return out


def matmul(
    a: Tensor,
    b: Tensor,
    batch_invariant: bool = False,
    out_dtype: str = "same",
    *,
    tf32: bool = False,
) -> Tensor:
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    cols = b.shape[-1:] if b.dim() > 1 else ()
    left = a if a.dim() > 1 else a.unsqueeze(0)
    right = b if b.dim() > 1 else b.unsqueeze(1)
    lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    if right.dim() == 2 and left.dim() > 2:
        left = left.flatten(0, -2)  # one product with more rows
    shape = (*lead, *rows, *cols)
    dtype = torch.float32 if out_dtype == "f32" else None
    return _run(left, right, shape, tf32=tf32, batch_invariant=batch_invariant, dtype=dtype)


def matmul_tf32(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b, tf32=True)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, batch_invariant: bool = False
) -> Tensor:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    shape = (*x.shape[:-1], weight.shape[0])
    return _run(
        rows,
        weight.t(),
        shape,
        bias,
        beta=1.0,
        activation=activation,
        batch_invariant=batch_invariant,
    )


def addmm(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*lead, a.shape[-2], b.shape[-1])
    return _run(a, b, shape, None if beta == 0 else c, alpha=alpha, beta=beta)
