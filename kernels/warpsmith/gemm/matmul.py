"""The matrix product, of tensors as `torch.matmul` takes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import FLOATS, Cost, Gradients, Needs, Op, Property
from warpsmith.gemm import matmul_cases as cases
from warpsmith.gemm.ladder import LADDER, on
from warpsmith.gemm.problem import Problem, product
from warpsmith.gemm.reference_in_large import among_others
from warpsmith.spec.checks import check_device, shape_text


def check_operand(op: str, name: str, x: Tensor, least: int) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected {name} to be a floating-point tensor, got {x.dtype}")
    if catalogue.is_fp8(x.dtype):
        raise RuntimeError(
            f"{op}: expected {name} to have at least 16 bits an element, got {x.dtype}"
        )
    if x.dim() < least:
        raise RuntimeError(
            f"{op}: expected at least {least} dimension{'s' if least > 1 else ''} in {name}, "
            f"got shape {shape_text(x)}"
        )


def name_of_dtype(dtype: str | torch.dtype) -> str:
    """As operators are given it, which PyTorch's functions take as a torch.dtype."""
    if not isinstance(dtype, torch.dtype):
        return dtype
    return catalogue.DTYPE_NAMES.get(dtype, str(dtype))


def check_alike(op: str, name: str, tensor: Tensor, x: Tensor, like: str) -> None:
    """Device and dtype of `x`, which messages call `like`."""
    check_device(op, name, tensor, x, like)
    if tensor.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like {like}, got {tensor.dtype}"
        )


def product_shape(op: str, a: Tensor, b: Tensor) -> torch.Size:
    """That of `torch.matmul(a, b)`.

    Raises:
        RuntimeError: the shapes do not multiply.
    """
    left = a.shape if a.dim() > 1 else (1, *a.shape)
    right = b.shape if b.dim() > 1 else (*b.shape, 1)
    try:
        if left[-1] != right[-2]:
            raise RuntimeError
        batch = torch.broadcast_shapes(left[:-2], right[:-2])
    except RuntimeError:
        raise RuntimeError(
            f"{op}: cannot multiply shapes {shape_text(a)} and {shape_text(b)}"
        ) from None
    rows = left[-2:-1] if a.dim() > 1 else ()
    cols = right[-1:] if b.dim() > 1 else ()
    return torch.Size((*batch, *rows, *cols))


def _check(a: Tensor, b: Tensor, out_dtype: str) -> None:
    check_operand("matmul", "a", a, 1)
    check_operand("matmul", "b", b, 1)
    check_alike("matmul", "b", b, a, "a")
    product_shape("matmul", a, b)
    if out_dtype not in ("same", "f32"):
        raise RuntimeError(f"matmul: expected out_dtype to be 'same' or 'f32', got '{out_dtype}'")


def _result_dtype(a: Tensor, out_dtype: str) -> torch.dtype:
    return torch.float32 if out_dtype == "f32" and a.dtype.itemsize < 4 else a.dtype


def gradients(
    a: Tensor,
    b: Tensor,
    needs: tuple[bool, bool],
    grad: Tensor,
    matmul: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch_invariant: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Of a product: grad b^T and a^T grad, summed over what was broadcast; by products of the same
    kind. `batch_invariant` is about the rows of a's gradient; b's is a sum over all of them.
    """
    product = torch.ops.warpsmith.matmul if matmul is None else matmul
    options = (batch_invariant,) if matmul is None else ()
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if a.dim() == 1:
        grad = grad.unsqueeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        grad = grad.unsqueeze(-1)
    grad_a = grad_b = None
    if needs[0]:
        grad_a = _sum_to(product(grad, right.mT, *options), left, a)
    if needs[1]:
        of = left
        if right.dim() == 2 and left.dim() > 2:
            # One long sum over the rows of the whole batch, instead of a sum of products.
            of, grad = left.flatten(0, -2), grad.flatten(0, -2)
        grad_b = _sum_to(product(of.mT, grad), right, b)
    return grad_a, grad_b


def _sum_to(grad: Tensor, matrix: Tensor, operand: Tensor) -> Tensor:
    """The gradient of an operand from that of the matrices it stood for, which may be many more.
    Most often there is nothing to do, and each view that PyTorch makes costs the host 2 us.
    """
    if grad.shape != matrix.shape:
        grad = grad.sum_to_size(matrix.shape)
    return grad if matrix is operand else grad.reshape(operand.shape)


def _derivative(
    grad: Tensor, a: Tensor, b: Tensor, batch_invariant: bool, needs: Needs
) -> Gradients:
    wanted = "a" in needs, "b" in needs
    grad_a, grad_b = gradients(a, b, wanted, grad.to(a.dtype), batch_invariant=batch_invariant)
    return {"a": grad_a, "b": grad_b}


def _reference(a: Tensor, b: Tensor, out_dtype: str) -> Tensor:
    wide = _result_dtype(a, out_dtype)
    return torch.matmul(a.to(wide), b.to(wide))


Product = Callable[[Tensor, Tensor], Tensor]


def _torch_product(a: Tensor, out_dtype: str) -> Product:
    """PyTorch's own, of a and of what has its dtype."""
    wide = _result_dtype(a, out_dtype)
    if wide == a.dtype:
        return torch.matmul
    if not a.is_cuda:
        return lambda x, y: torch.matmul(x.to(wide), y.to(wide))

    def product(x: Tensor, y: Tensor) -> Tensor:
        """On tensor cores."""
        if x.dim() == y.dim() == 2:
            return torch.mm(x, y, out_dtype=wide)
        left = x if x.dim() > 1 else x.unsqueeze(0)
        right = y if y.dim() > 1 else y.unsqueeze(1)
        lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (
            t.expand(*lead, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (left, right)
        )
        return torch.bmm(left, right, out_dtype=wide).reshape(product_shape("matmul", x, y))

    return product


def _among_others(
    a: Tensor, b: Tensor, batch_invariant: bool = False, out_dtype: str = "same"
) -> Tensor:
    return among_others(_torch_product(a, out_dtype), a, b)


def _column_major(
    a: Tensor, b: Tensor, batch_invariant: bool = False, out_dtype: str = "same"
) -> Tensor:
    """PyTorch's product with b in columns: whether cuBLAS cuts k into parts, and so what it loses,
    depends on the layout, and a product does not.
    """
    return _torch_product(a, out_dtype)(a, b.mT.contiguous().mT if b.dim() > 1 else b)


def _problem(
    a: Tensor, b: Tensor, batch_invariant: bool = False, out_dtype: str = "same"
) -> Problem:
    return product(a, b, batch_invariant=batch_invariant, wide=out_dtype == "f32")


def _magnitudes(a: Tensor, b: Tensor) -> Tensor:
    """The largest that a sum within the product can become, for each of its elements."""
    return torch.matmul(a.abs(), b.abs()).unsqueeze(-1)


def moved_bytes(a: Tensor, b: Tensor, out_dtype: str = "same") -> int:
    written = math.prod(product_shape("matmul", a, b)) * _result_dtype(a, out_dtype).itemsize
    return (a.numel() + b.numel()) * a.element_size() + written


def operations(a: Tensor, b: Tensor, batch_invariant: bool = False) -> int:
    return 2 * math.prod(product_shape("matmul", a, b)) * a.shape[-1]


def torch_lacks(a: Tensor, batch_invariant: bool = False) -> str | None:
    """Why PyTorch's own may not stand in for a product."""
    if a.dtype not in (torch.float16, torch.bfloat16):
        return "may multiply by TF32, where its settings say so"
    return "chooses by the number of rows" if batch_invariant else None


matmul_op = catalogue.add(
    Op(
        "matmul(Tensor a, Tensor b, bool batch_invariant=False, str out_dtype='same') -> Tensor",
        family="gemm",
        reference=_reference,
        ladder=tuple(on(_problem, rung) for rung in LADDER),
        triton="matmul_triton:matmul",
        yields=True,
        torch_lacks=torch_lacks,
        fake=lambda a, b, out_dtype: a.new_empty(
            product_shape("matmul", a, b), dtype=_result_dtype(a, out_dtype)
        ),
        check=_check,
        backward=_derivative,
        accumulates=True,
        terms=_magnitudes,
        low_precision_threads=1,
        alternatives=(_among_others, _column_major),
        aliases=("gemm",),
        peer_seeds={"hgemm_mma_cublas": "torch"},
        samples=(*cases.samples(), *cases.invariant(), *cases.wide()),
        errors=(*cases.errors("matmul"), cases.NO_SUCH_RESULT),
        properties=(
            Property("identity", cases.identity),
            Property("whole numbers are exact", cases.whole_numbers),
            Property("deterministic", cases.deterministic),
            Property("results in f32 are not rounded", cases.not_rounded),
        ),
        cost=Cost(bytes=moved_bytes, flops=operations),
        bench=cases.bench(),
        bench_dtypes=FLOATS,
    )
)
dispatch.register(matmul_op)
_matmul = dispatch.public(matmul_op)
_matmul_into = into.register(matmul_op)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    batch_invariant: bool = False,
    out_dtype: str | torch.dtype = "same",
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """The matrix product, of batches where there are more than two dimensions.

    Sums are held in f32 and rounded once, unless a variant's name ends in `_f16`; f32 operands are
    multiplied as they are, without TF32. The same inputs give the same bits on every run.
    Differentiable in a and b.

    Args:
        a: [..., m, k], or [k] for a row; f32, f16 or bf16 (f64 by the reference), any strides.
        b: [..., k, n], or [k] for a column; of the dtype and device of a, any strides. Row-major
            and column-major operands are read as they lie, in any combination. The dimensions
            before the last two are broadcast.
        batch_invariant: whether a row shall have the same bits whatever other rows the call has,
            and however many: few rows are then multiplied as many are, in one sum along k. A
            promise of the compiled kernels and of Triton's, each for itself.
        out_dtype: "same", the dtype of a, or "f32", or either as PyTorch's dtype: sums of 16-bit
            operands as they are held, without being rounded. Their gradient is rounded to the dtype
            of a first.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "f16_mma_peak_f32". Those that end in
            `_f16` hold their sums in f16: they overflow beyond 65504, and keep 11 bits.

    Returns:
        A contiguous tensor [..., m, n] of that dtype; without m where a is a vector, without n
        where b is one.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8, or has no dimension; the dtypes,
            devices or shapes do not fit; out_dtype is neither; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.matmul`; in f32 `torch.mm(a, b, out_dtype=torch.float32)`.
    """
    if isinstance(out_dtype, torch.dtype):
        same = isinstance(a, Tensor) and out_dtype == a.dtype
        out_dtype = "same" if same else name_of_dtype(out_dtype)
    if out is not None:
        return _matmul_into(out, variant, a, b, batch_invariant, out_dtype)  # type: ignore[no-any-return]
    return _matmul(variant, a, b, batch_invariant, out_dtype)
