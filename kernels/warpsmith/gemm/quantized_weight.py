"""Weights of 4 and 8 bits in the order in which tensor cores read them: into it, and out of it.

csrc/gemm/quantized_linear/quantized_linear.h has the picture.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core.catalogue import is_fp8
from warpsmith.spec.checks import check_device, shape_text

#: Rows and columns of a unit, and its words by how many bits a code has.
UNIT = 64
WORDS = {4: 512, 8: 1024}
GROUPS = (32, 64, 128)
LAYOUTS = ("awq", "gptq", "gptq_v2", "int8")
#: Which column AWQ has in each four bits of a word.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
#: A unit row is [4 blocks of 16, 2, 8] rows, a unit column [4 fragments, 2, 4, 2] columns; of each
#: size, where it comes to stand.
_SPLIT_ROWS, _SPLIT_COLS = (4, 2, 8), (4, 2, 4, 2)


class QuantizedWeight(NamedTuple):
    """What `quantized_linear` takes of a weight.

    Attributes:
        weight: int32 [ceil(n / 64), ceil(k / 64), 512 in 4 bits or 1024 in 8].
        scales: [groups, n], f32, f16 or bf16.
        zeros: int8 [groups, n]; None: 8 in 4 bits, 0 in 8.
    """

    weight: Tensor
    scales: Tensor
    zeros: Tensor | None


def bits_of(weight: Tensor) -> int:
    return 4 if weight.shape[2] == WORDS[4] else 8


def _words_of(codes: Tensor, at: tuple[int, ...]) -> Tensor:
    """Codes [..., count] of int64, each shifted to its place, as int32 [...]."""
    shifts = torch.tensor(at, device=codes.device)
    words = (codes << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes [n, k], of 4 bits without a sign or of 8 with one, as words."""
    n, k = codes.shape
    codes = F.pad(codes.long() & (2**bits - 1), (0, -k % UNIT, 0, -n % UNIT)).contiguous()
    down, across = codes.shape[0] // UNIT, codes.shape[1] // UNIT
    # rows: unit, block r, down, g; columns: unit, fragment, right, t, second
    split = codes.view(down, *_SPLIT_ROWS, across, *_SPLIT_COLS)
    if bits == 4:
        order = split.permute(0, 4, 1, 3, 7, 5, 8, 6, 2)  # r, g, t, fragment; second, right, down
        words = _words_of(order.flatten(6), (0, 4, 8, 12, 16, 20, 24, 28))
    else:
        split = split.view(down, *_SPLIT_ROWS, across, 2, 2, *_SPLIT_COLS[1:])
        # r, half of the fragments, g, t, fragment, right; second, down
        order = split.permute(0, 4, 1, 5, 3, 8, 6, 7, 9, 2)
        words = _words_of(order.flatten(8), (0, 8, 16, 24))
    return words.reshape(down, across, WORDS[bits])


def codes_of(weight: Tensor, n: int, k: int) -> Tensor:
    """The codes [n, k] of words, as int32: from 0 to 15, or from -128 to 127."""
    bits, (down, across) = bits_of(weight), weight.shape[:2]
    count = 32 // bits
    shifts = torch.arange(count, device=weight.device, dtype=torch.int32) * bits
    codes = (weight.unsqueeze(-1) >> shifts) & (2**bits - 1)
    if bits == 4:
        split = codes.view(down, across, 4, 8, 4, 4, 2, 2, 2)  # as `order` above
        split = split.permute(0, 2, 8, 3, 1, 5, 7, 4, 6)
    else:
        split = codes.view(down, across, 4, 2, 8, 4, 2, 2, 2, 2)
        split = split.permute(0, 2, 9, 4, 1, 3, 6, 7, 5, 8)
    whole = split.reshape(down * UNIT, across * UNIT)[:n, :k]
    return whole if bits == 4 else (whole ^ 128) - 128


def _spread(of_groups: Tensor, k: int) -> Tensor:
    """[groups, n] to [n, k]."""
    groups = of_groups.shape[0]
    if groups == 1:
        return of_groups.t().expand(-1, k)
    return of_groups.t().repeat_interleave(k // groups, 1)


def shifted_codes(weight: Tensor, zeros: Tensor | None, n: int, k: int) -> Tensor:
    """Codes less their zeros, [n, k], int32."""
    codes = codes_of(weight, n, k)
    if zeros is not None:
        return codes - _spread(zeros.to(torch.int32), k)
    return codes - 8 if bits_of(weight) == 4 else codes


def dequantized(weight: Tensor, scales: Tensor, zeros: Tensor | None, k: int) -> Tensor:
    """The weight [n, k] in the dtype of the scales."""
    codes = shifted_codes(weight, zeros, scales.shape[1], k)
    return codes.to(scales.dtype) * _spread(scales, k)


# --- what others write ----------------------------------------------------------------------------


def _unpacked(words: Tensor, order: tuple[int, ...]) -> Tensor:
    """int32 [a, b] to its codes of 4 bits [a, 8 b], the i-th of a word at `order[i]`."""
    shifts = torch.empty(8, dtype=torch.int32, device="cpu")
    shifts[list(order)] = torch.arange(8, dtype=torch.int32, device="cpu") * 4
    return ((words.unsqueeze(-1) >> shifts.to(words.device)) & 15).flatten(1)


_IN_ORDER = tuple(range(8))


_OP = "repack_quantized_weight"


def _fail(message: str) -> NoReturn:
    raise RuntimeError(f"{_OP}: {message}")


def _check_tensors(
    qweight: Tensor, scales: Tensor, qzeros: Tensor | None, g_idx: Tensor | None
) -> None:
    given = {"qweight": qweight, "scales": scales, "qzeros": qzeros, "g_idx": g_idx}
    for name, x in given.items():
        if x is None and name in ("qzeros", "g_idx"):
            continue
        if not isinstance(x, Tensor):
            wanted = "a tensor" if name in ("qweight", "scales") else "a tensor or None"
            found = "None" if x is None else type(x).__name__
            raise TypeError(f"{_OP}: expected {name} to be {wanted}, got {found}")
        check_device(_OP, name, x, qweight, "qweight")


def _check_scales(scales: Tensor, layout: str, dtype: torch.dtype | None) -> None:
    if not scales.is_floating_point() or is_fp8(scales.dtype):
        _fail(
            "expected scales to be a floating-point tensor of at least 16 bits an element, got "
            f"{scales.dtype}"
        )
    if not (scales.dim() == 2 or (scales.dim() == 1 and layout == "int8")):
        one = "1-D or " if layout == "int8" else ""
        _fail(f"expected scales of '{layout}' to be {one}2-D, got shape {shape_text(scales)}")
    if dtype not in (None, torch.float32, torch.float16, torch.bfloat16, torch.float64):
        _fail(
            "expected dtype to be torch.float32, torch.float16, torch.bfloat16 or torch.float64, "
            f"got {dtype}"
        )


def _of_four_bits(
    qweight: Tensor, qzeros: Tensor | None, layout: str
) -> tuple[Tensor, Tensor | None]:
    """Codes [n, k] and zeros [groups, n]."""
    if qweight.dtype != torch.int32 or qweight.dim() != 2:
        _fail(
            f"expected qweight of '{layout}' to be 2-D and to hold torch.int32, got "
            f"{shape_text(qweight)} of {qweight.dtype}"
        )
    order = _AWQ_ORDER if layout == "awq" else _IN_ORDER
    along_n = layout == "awq"
    codes = _unpacked(qweight if along_n else qweight.t(), order)
    codes = codes.t() if along_n else codes
    if qzeros is None:
        return codes, None
    if qzeros.dtype != torch.int32 or qzeros.dim() != 2:
        _fail(
            f"expected qzeros to be 2-D and to hold torch.int32, got {shape_text(qzeros)} of "
            f"{qzeros.dtype}"
        )
    zeros = _unpacked(qzeros, order) + int(layout == "gptq")
    return codes, zeros.to(torch.int8)


def repack_quantized_weight(
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor | None = None,
    layout: str = "awq",
    g_idx: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> QuantizedWeight:
    """Brings a quantised weight [n, k] into the order that `quantized_linear` reads, once, on its
    own device. A weight is `(code - zero) * scale`.

    Args:
        qweight: by layout: "awq", int32 [k, n / 8], eight columns a word, in the order 0, 2, 4, 6,
            1, 3, 5, 7 from the lowest bits on; "gptq" and "gptq_v2", int32 [k / 8, n], eight rows a
            word; "int8", int8 [n, k].
        scales: [groups, n], floating-point; of "int8" [n] or [n, groups], as quantisers give them.
            Groups are of 32, 64 or 128 values of k, or there is one.
        qzeros: int32 [groups, n / 8], packed along n as the layout has it; "gptq" stores the zero
            less one. None: 8, or 0 of "int8", which has no others.
        layout: "awq", "gptq", "gptq_v2" or "int8".
        g_idx: [k], the group of each value of k, as GPTQ's act-order leaves it. Only groups in
            their order are taken.
        dtype: of the scales that are returned, which x has to have: f32, f16, bf16 or f64; by
            default theirs.

    Returns:
        A `QuantizedWeight`, contiguous: what `quantized_linear` takes behind x.

    Raises:
        RuntimeError: dtypes, devices or shapes do not fit the layout or each other; groups are of
            another size; g_idx is not in order.
        TypeError: qweight or scales is no tensor, or qzeros or g_idx neither a tensor nor None.
        ValueError: there is no such layout.

    Reference:
        Lin et al. 2023, AWQ, https://arxiv.org/abs/2306.00978; Frantar et al. 2022, GPTQ,
        https://arxiv.org/abs/2210.17323
    """
    if layout not in LAYOUTS:
        listed = "'awq', 'gptq', 'gptq_v2' or 'int8'"
        raise ValueError(f"{_OP}: expected layout to be {listed}, got '{layout}'")
    _check_tensors(qweight, scales, qzeros, g_idx)
    _check_scales(scales, layout, dtype)
    if layout == "int8":
        if qweight.dtype != torch.int8 or qweight.dim() != 2:
            _fail(
                "expected qweight of 'int8' to be 2-D and to hold torch.int8, got "
                f"{shape_text(qweight)} of {qweight.dtype}"
            )
        if qzeros is not None:
            _fail("expected qzeros to be None for 'int8', which has none")
        codes, zeros, bits = qweight, None, 8
        scales = scales.unsqueeze(0) if scales.dim() == 1 else scales.t()
    else:
        (codes, zeros), bits = _of_four_bits(qweight, qzeros, layout), 4
    n, k = codes.shape
    groups = scales.shape[0]
    if scales.shape[1] != n:
        _fail(f"expected scales of {n} columns of qweight, got {shape_text(scales)} as (groups, n)")
    if groups != 1 and (groups == 0 or k % groups or k // groups not in GROUPS):
        _fail(f"expected one group, or groups of 32, 64 or 128 of {k} values, got {groups} groups")
    if zeros is not None and zeros.shape != scales.shape:
        _fail(f"expected qzeros to stand for {shape_text(scales)} zeros, got {shape_text(zeros)}")
    if g_idx is not None:
        in_order = torch.arange(k, device=g_idx.device, dtype=g_idx.dtype) // (k // groups)
        if g_idx.shape != (k,) or not torch.equal(g_idx, in_order):
            _fail("expected g_idx to name groups in their order: act-order is not taken")
    return QuantizedWeight(
        packed(codes, bits),
        scales.to(dtype or scales.dtype).contiguous(),
        None if zeros is None else zeros.contiguous(),
    )
