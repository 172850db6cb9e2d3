"""The sum of all elements."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPES, PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.reduce import reduce_sum_cases as cases
from warpsmith.spec.determinism import cancelling, deterministic


def result_dtype(x: Tensor) -> torch.dtype:
    """int64 for integers and booleans, float32 for fp8, else the dtype of `x`."""
    if catalogue.is_fp8(x.dtype):
        return torch.float32
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.int64


def _reference(x: Tensor) -> Tensor:
    return x.sum()


def _fake(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=result_dtype(x))


def _derivative(grad: Tensor, x: Tensor) -> Gradients:
    return {"x": grad.to(x.dtype).expand(x.shape)}


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size() + result_dtype(x).itemsize


#: What a thread adds its values in, or a warp the few of a short input; the rest is joined in f64
#: or int64.
_WIDE = dict.fromkeys(DTYPES, ("f32",)) | {"i8": ("i32",), "i32": ("i64",)}
_BOTH = _WIDE | {
    "f16": ("f32", "same"),
    "bf16": ("f32", "same"),
    "e4m3": ("f32", "f16"),
    "e5m2": ("f32", "f16"),
}
#: The most values that a thread adds up before a wider sum takes over.
_VALUES_PER_THREAD = 64
_EVERY = tuple(DTYPES)
#: What is shorter is read in less time than the host takes for a second launch.
_TWO_PASS_BYTES = 8 << 20


def long_enough(*operands: Tensor) -> str | None:
    """For two launches that overlap."""
    read = sum(x.numel() * x.element_size() for x in operands)
    return None if read >= _TWO_PASS_BYTES else "one launch takes the host less time"


def _climb(name: str, story: str, *seeds: str) -> Rung:
    return Rung(name, story, dtypes=("f32",), technique=name, seeds=seeds)


reduce_sum_op = catalogue.add(
    Op(
        "reduce_sum(Tensor x) -> Tensor",
        family="reduce",
        reference=_reference,
        ladder=(
            _climb(
                "atomic",
                "threads add to one address by atomics: not deterministic",
                "array_sum_without_shared_memory_{dtype}",
            ),
            _climb(
                "baseline",
                "a tree in shared memory, every second thread adding its neighbour",
                "reduce_sum_v0_{dtype}",
                "array_sum_with_shared_memory_{dtype}",
            ),
            _climb(
                "interleaved",
                "the first threads do the work: no divergence",
                "reduce_sum_v1_{dtype}",
            ),
            _climb(
                "conflict_free",
                "a warp adds neighbouring words: no bank conflicts",
                "reduce_sum_v2_{dtype}",
            ),
            _climb(
                "halved",
                "every thread adds while loading: no idle threads",
                "reduce_sum_v3_{dtype}",
            ),
            _climb("unroll_warp", "the last warp needs no barriers", "reduce_sum_v4_{dtype}"),
            _climb("unroll_full", "the whole tree unrolled", "reduce_sum_v5_{dtype}"),
            _climb("multi_add", "sixteen values a thread before the tree", "reduce_sum_v6_{dtype}"),
            Rung(
                "shuffle",
                "warp shuffles replace the tree, a second launch adds the blocks",
                dtypes=_EVERY,
                accumulators=_BOTH,
                seeds=("reduce_sum_v7_f32", "block_all_reduce_f32_f32"),
            ),
            Rung(
                "x2",
                "two values an access",
                dtypes=_EVERY,
                width=2,
                accumulators=_BOTH,
            ),
            Rung(
                "pack",
                "128-bit accesses, four in flight",
                dtypes=_EVERY,
                width=PACK,
                pack=True,
                accumulators=_BOTH,
                seeds=("reduce_sum_v8_f32", "block_all_reduce_f32x4_f32"),
            ),
            Rung(
                "one_pass",
                "a single launch: the last block adds the others up, in a fixed order",
                dtypes=_EVERY,
                width=PACK,
                pack=True,
                technique="one_pass",
                accumulators=_WIDE,
                seeds=("reduce_sum_one_pass_{dtype}", "deterministic_reduce_sum_{dtype}"),
            ),
            Rung(
                "two_pass",
                "two launches, each of which starts while what comes before it ends",
                dtypes=_EVERY,
                width=PACK,
                pack=True,
                technique="two_pass",
                min_sm=90,
                suits=long_enough,
                accumulators=_WIDE,
            ),
        ),
        triton="reduce_sum_triton:reduce_sum",
        fake=_fake,
        backward=_derivative,
        accumulates=True,
        terms=lambda x: x.flatten(),
        low_precision_terms=_VALUES_PER_THREAD,
        aliases=("block_all_reduce",),
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("deterministic", deterministic(lambda i: (cancelling(i, 1_000_003),))),
            Property("whole numbers are exact", cases.whole_numbers),
            Property("layout does not matter", cases.layout_free),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: x.numel()),
        bench=cases.BENCH,
        bench_dtypes=("f32", "f16", "bf16", "e4m3", "e5m2", "i8"),
    )
)
dispatch.register(reduce_sum_op)
_reduce_sum = dispatch.public(reduce_sum_op)


def reduce_sum(x: Tensor, *, variant: str | None = None) -> Tensor:
    """The sum of all elements: `y = x[0] + x[1] + ...`.

    The same input gives the same bits on every run, whatever else the GPU does. A thread, or of a
    short input a warp, adds a few values in f32 (i8 in int32), the rest is added in f64 (int64) and
    rounded once. Differentiable.

    Args:
        x: any shape and strides; f32, f16, bf16, fp8, int8 and int32 have kernels. A tensor with
            gaps or overlaps is copied first; the order of its dimensions does not matter.
        variant: one rung by name instead of the best one, "f16x8_pack_f32". Variants that end in
            f16 or bf16 add the at most 64 values of a thread in that dtype: f16 overflows once they
            pass 65504, bf16 keeps 8 bits of them. "f32_atomic" adds in whatever order threads
            arrive, so that its last bits change from run to run.

    Returns:
        A tensor without dimensions: int64 for integers and booleans, f32 for fp8, else of the dtype
        of x. The sum of no elements is 0.

    Raises:
        RuntimeError: the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        `torch.sum`; M. Harris, Optimizing Parallel Reduction in CUDA,
        https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf
    """
    return _reduce_sum(variant, x)
