"""Dropout that keeps a bit for each element, alone or between a bias and a residual sum:
y = residual + dropout(x + bias), and its gradient from the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, sharded
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.elementwise import checks
from warpsmith.elementwise import dropout_cases as cases
from warpsmith.elementwise.binary import sum_to
from warpsmith.elementwise.flat import aligned
from warpsmith.spec import philox
from warpsmith.spec.peers import PerInput

#: Of a word of the mask, which is int32: PyTorch computes little in uint32.
MASK_BITS = 32

# --- the mask -------------------------------------------------------------------------------------


def words(n: int) -> int:
    """Of the mask of n elements."""
    return -(-n // MASK_BITS)


def pack_mask(kept: Tensor) -> Tensor:
    """Bit i % 32 of word i / 32 from bool i in row-major order; 0 where there is none."""
    flat = kept.new_zeros(words(kept.numel()) * MASK_BITS, dtype=torch.uint8)
    flat[: kept.numel()] = kept.reshape(-1)
    places = torch.arange(8, dtype=torch.uint8, device=kept.device)
    return (flat.view(-1, 8) << places).sum(-1, dtype=torch.uint8).view(torch.int32)


def unpack_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """The bools that `pack_mask` packed."""
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    bits = (mask.contiguous().view(torch.uint8).unsqueeze(-1) >> places) & 1
    return bits.view(-1)[: shape.numel()].view(shape).bool()


# --- checks ---------------------------------------------------------------------------------------


def _check(x: Tensor, p: float) -> None:
    checks.floating("dropout", "x", x)
    philox.check("dropout", p)


def _check_fused(x: Tensor, bias: Tensor | None, residual: Tensor | None, p: float) -> None:
    op = "bias_dropout_add"
    checks.floating(op, "x", x)
    if bias is not None:
        checks.bias(op, x, bias)
    if residual is not None:
        checks.like(op, "residual", residual, x)
        checks.shaped(op, "residual", residual, tuple(x.shape))
    philox.check(op, p)


def _check_backward(grad: Tensor, mask: Tensor, p: float) -> None:
    op = "dropout_backward"
    checks.floating(op, "grad", grad)
    if mask.device != grad.device:
        raise RuntimeError(
            f"{op}: expected mask to be on {grad.device} like grad, got {mask.device}"
        )
    if mask.dtype != torch.int32:
        raise RuntimeError(f"{op}: expected mask to have dtype torch.int32, got {mask.dtype}")
    n = words(grad.numel())
    if tuple(mask.shape) != (n,):
        raise RuntimeError(
            f"{op}: expected mask to have shape ({n},), a bit for each element of grad, "
            f"got {tuple(mask.shape)}"
        )
    philox.check(op, p)


# --- references -----------------------------------------------------------------------------------


def _keep(x: Tensor, kept: Tensor, p: float) -> Tensor:
    return torch.where(kept, x * philox.keep_scale(p), 0.0)


def _reference_fused(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, p: float, seed: int, offset: int
) -> tuple[Tensor, Tensor]:
    kept = philox.keep_mask(x.shape, p, seed, offset, x.device)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = _keep(wide if bias is None else wide + bias, kept, p)
    y = y if residual is None else y + residual
    return y.to(x.dtype).contiguous(), pack_mask(kept)


def _reference(x: Tensor, p: float, seed: int, offset: int) -> tuple[Tensor, Tensor]:
    return _reference_fused(x, None, None, p, seed, offset)


def _reference_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    return _keep(grad, unpack_mask(mask, grad.shape), p).contiguous()


def _fake(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(words(x.numel()), dtype=torch.int32)


# --- gradients ------------------------------------------------------------------------------------


def _derivative(grad_y: Tensor, mask: Tensor, p: float) -> Gradients:
    return {"x": torch.ops.warpsmith.dropout_backward(grad_y, mask, p)}


def _derivative_fused(grad_y: Tensor, mask: Tensor, p: float, needs: Needs) -> Gradients:
    dx = dbias = None
    if "x" in needs or "bias" in needs:
        dx = torch.ops.warpsmith.dropout_backward(grad_y, mask, p)
        dbias = sum_to(dx, dx.shape[-1:]) if "bias" in needs else None
    return {"x": dx, "bias": dbias, "residual": grad_y}


def _derivative_backward(grad_dx: Tensor, mask: Tensor, p: float) -> Gradients:
    return {"grad": torch.ops.warpsmith.dropout_backward(grad_dx, mask, p)}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_packs_fused(x: Tensor, bias: Any, residual: Any, *rest: Any) -> str | None:
    if x.numel() == 0:
        return None
    if not aligned(x, bias, residual):
        return "needs x, bias and residual aligned to 16 bytes"
    if bias is not None and x.shape[-1] % PACK[DTYPE_NAMES[x.dtype]]:
        return "needs rows that are whole packs beside a bias"
    return None


def _needs_packs(x: Tensor, *rest: Any) -> str | None:
    return _needs_packs_fused(x, None, None)


def _needs_packs_backward(grad: Tensor) -> str | None:
    return None if not grad.numel() or aligned(grad) else "needs grad aligned to 16 bytes"


def _ladder(needs_packs: Callable[..., str | None], seed: str) -> tuple[Rung, ...]:
    return (
        Rung("naive", "one element a thread, which draws for itself"),
        Rung(
            "pack",
            "one 128-bit access a thread, a draw for four elements",
            width=PACK,
            pack=True,
            when=needs_packs,
            seeds=(seed,),
        ),
        Rung(
            "stream",
            "draws while two or four packs are on their way past L1",
            width=PACK,
            pack=True,
            technique="stream",
            when=needs_packs,
        ),
    )


# --- peers ----------------------------------------------------------------------------------------
#
# They get the mask of what is kept, and its bits, made once per input: PyTorch's own generator
# draws other numbers, and torch.compile does not end on ours written out.


def _known(x: Tensor, p: float, seed: int, offset: int) -> tuple[Tensor, Tensor]:
    kept = philox.keep_mask(x.shape, p, seed, offset, x.device)
    return kept, pack_mask(kept)


def _written(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, kept: Tensor, p: float
) -> Tensor:
    y = x if bias is None else x + bias
    if p > 0.0:  # what PyTorch calls for the gradient is a product with a mask in one pass
        y = torch.ops.aten.native_dropout_backward(y, kept, philox.keep_scale(p))
    return y if residual is None else residual + y


def _by_fused(written: Callable[..., Tensor]) -> Callable[..., Any]:
    known = PerInput(_known)

    def run(x: Tensor, bias: Any, residual: Any, p: float, seed: int, offset: int) -> Any:
        kept, mask = known(x, p, seed, offset)
        return written(x, bias, residual, kept, p), mask

    return run


def _by(written: Callable[..., Tensor]) -> Callable[..., Any]:
    fused = _by_fused(written)
    return lambda x, *drawn: fused(x, None, None, *drawn)


def _by_backward(written: Callable[..., Tensor]) -> Callable[..., Tensor]:
    known = PerInput(unpack_mask)
    return lambda grad, mask, p: written(grad, None, None, known(mask, grad.shape), p)


def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_written, dynamic=False)


# --- the operators --------------------------------------------------------------------------------


def _size(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _bytes(x: Tensor, *rest: Any) -> int:
    return 2 * _size(x) + _size(*rest) + 4 * words(x.numel())


_TAIL = "int seed=0, int offset=0) -> (Tensor y, Tensor mask)"

dropout_op = catalogue.add(
    Op(
        f"dropout(Tensor x, float p=0.5, {_TAIL}",
        family="elementwise",
        elementwise=True,
        reference=_reference,
        ladder=_ladder(_needs_packs, "dropout_bit_mask_{dtype}"),
        triton="dropout_triton:dropout",
        fake=_fake,
        check=_check,
        backward=_derivative,
        constants=("mask",),
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(
            Property("drops what philox says", cases.drops_what_philox_says),
            Property("p = 0 changes nothing", cases.keeps_all),
            Property("p = 1 leaves nothing", cases.keeps_none),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: x.numel()),
        bench=cases.bench(),
        peers={"compile": lambda: _by(_compiled())},
        eager=_by(_written),
    )
)

bias_dropout_add_op = catalogue.add(
    Op(
        f"bias_dropout_add(Tensor x, Tensor? bias, Tensor? residual, float p=0.0, {_TAIL}",
        family="elementwise",
        source="dropout",
        elementwise=True,
        reference=_reference_fused,
        ladder=_ladder(_needs_packs_fused, "bias_residual_{dtype}"),
        triton="dropout_triton:bias_dropout_add",
        fake=_fake,
        check=_check_fused,
        backward=_derivative_fused,
        constants=("mask",),
        samples=cases.fused_samples(),
        errors=cases.fused_errors(),
        properties=(Property("without bias and residual dropout", cases.alone_is_dropout),),
        cost=Cost(bytes=_bytes, flops=lambda x: 3 * x.numel()),
        bench=cases.fused_bench(),
        peers={"compile": lambda: _by_fused(_compiled())},
        eager=_by_fused(_written),
    )
)

dropout_backward_op = catalogue.add(
    Op(
        "dropout_backward(Tensor grad, Tensor mask, float p) -> Tensor dx",
        family="elementwise",
        source="dropout/backward",
        elementwise=True,
        reference=_reference_backward,
        ladder=(
            Rung("naive", "one element a thread"),
            Rung(
                "stream",
                "128-bit accesses past L1, two packs on their way",
                width=PACK,
                pack=True,
                technique="stream",
                when=_needs_packs_backward,
            ),
        ),
        triton="dropout_triton:dropout_backward",
        fake=lambda grad: grad.new_empty(grad.shape),
        check=_check_backward,
        backward=_derivative_backward,
        samples=cases.backward_samples(pack_mask),
        errors=cases.backward_errors(),
        cost=Cost(
            bytes=lambda grad, mask: 2 * _size(grad) + _size(mask),
            flops=lambda grad: grad.numel(),
        ),
        bench=cases.backward_bench(pack_mask),
        peers={"compile": lambda: _by_backward(_compiled())},
        eager=_by_backward(_written),
    )
)

for _op in (dropout_op, bias_dropout_add_op, dropout_backward_op):
    dispatch.register(_op)
_dropout = dispatch.public(dropout_op)
_bias_dropout_add = dispatch.public(bias_dropout_add_op)


def dropout(
    x: Tensor,
    p: float = 0.5,
    seed: int | None = None,
    offset: int | None = None,
    *,
    training: bool = True,
    return_mask: bool = False,
    variant: str | None = None,
) -> Any:
    """Dropout: `y = x / (1 - p)` where an element is kept, otherwise 0. The gradient reads which
    are kept, a bit for each, an eighth of what a mask of bools takes.

    Which elements those are depends on `p`, `seed`, `offset` and the shape alone (Philox4x32-10,
    element by element in row-major order): the same on every GPU, with every kernel, and on a CPU.
    Without a seed each call draws one from PyTorch's generator for the CPU. Compiled code, and a
    CUDA graph while it is recorded, would keep that seed for ever: there PyTorch's own dropout
    serves, which draws anew on every replay.

    Args:
        x: any shape and strides, float32, float16 or bfloat16 (float64 and fp8 without a kernel of
            their own); what is not contiguous is copied.
        p: the probability of dropping an element, from 0 to 1.
        seed: of the generator, any 64-bit number; None for a fresh one. A bool in its place is
            `training`, as in PyTorch, and another one behind it `inplace`, which must be False.
        offset: which of the independent streams of that seed, any 64-bit number; without a seed, of
            seed 0.
        training: whether anything is dropped; x is returned as it is otherwise.
        return_mask: whether the bits are returned, too.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        y, contiguous, of the shape and dtype of `x`; with `return_mask` also the mask, int32
        [ceil(n / 32)]: bit i % 32 of word i / 32 is set where element i, in row-major order, is
        kept.

    Raises:
        RuntimeError: for another dtype or `p` than these, or where the variant cannot take the
            call.
        ValueError: for an unknown variant, or `inplace`.

    Reference:
        Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting";
        `torch.nn.functional.dropout`, `torch.native_dropout`.
    """
    if isinstance(seed, bool):
        training, seed = seed, None
        if isinstance(offset, bool):
            if offset:
                raise ValueError("dropout: expected inplace=False, got True")
            offset = None
    if not training:
        if not return_mask:
            return x
        p = 0.0
    if rules := sharded.of(x):
        y, mask = rules.dropped(
            "dropout",
            lambda **given: dropout(**given, p=p, return_mask=True, variant=variant),
            {"x": x},
            p,
            seed,
            offset,
        )
        return (y, mask) if return_mask else y
    drawn = philox.drawn(seed, offset, p)
    if drawn is None and not return_mask:
        return torch.nn.functional.dropout(x, p).contiguous()
    if drawn is None:
        y, mask = _by_pytorch(x, None, None, p)
    else:
        y, mask = _dropout(variant, x, p, *drawn)
    return (y, mask) if return_mask else y


def _by_pytorch(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, p: float
) -> tuple[Tensor, Tensor]:
    """Where PyTorch's generator is to draw on the GPU."""
    factors = torch.nn.functional.dropout(torch.ones_like(x), p)
    y = (x if bias is None else x + bias) * factors
    y = y if residual is None else residual + y
    transforms = torch._C._are_functorch_transforms_active()
    pack = _pack_mask_by_sums if transforms else pack_mask
    return y.contiguous(), pack(factors != 0)


def _pack_mask_by_sums(kept: Tensor) -> Tensor:
    """`pack_mask` without a view as another dtype, for which older versions of PyTorch have no rule
    under vmap.
    """
    flat = kept.new_zeros(words(kept.numel()) * MASK_BITS, dtype=torch.int32)
    flat[: kept.numel()] = kept.reshape(-1)
    places = torch.arange(MASK_BITS, dtype=torch.int32, device=kept.device)
    return (flat.view(-1, MASK_BITS) << places).sum(-1, dtype=torch.int32)


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    *,
    training: bool = True,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """What follows a linear layer on its way back to the residual stream, in one pass:
    `y = residual + dropout(x + bias)`, rounded once.

    Args:
        x: [..., n] of any strides, float32, float16 or bfloat16, as in `dropout`.
        bias: [n], the dtype and device of `x`; None adds nothing.
        residual: the shape, dtype and device of `x`; None adds nothing.
        p: the probability of dropping an element, from 0 to 1; 0 leaves a sum of three.
        seed: of the generator, as in `dropout`.
        offset: likewise.
        training: whether anything is dropped.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        y and the mask, as `dropout` returns them.

    Raises:
        RuntimeError: for other dtypes, devices, shapes or `p` than these, or where the variant
            cannot take the call.
        ValueError: for an unknown variant.

    Reference:
        Shoeybi et al. 2019, "Megatron-LM", https://arxiv.org/abs/1909.08053
    """
    if not training:
        p = 0.0
    if rules := sharded.of(x):
        y, mask = rules.dropped(
            "bias_dropout_add",
            lambda **given: bias_dropout_add(**given, p=p, variant=variant),
            {"x": x, "bias": bias, "residual": residual},
            p,
            seed,
            offset,
        )
        return y, mask
    drawn = philox.drawn(seed, offset, p)
    if drawn is None:
        return _by_pytorch(x, bias, residual, p)
    return _bias_dropout_add(variant, x, bias, residual, p, *drawn)
