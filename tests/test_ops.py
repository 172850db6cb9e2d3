"""Every operator on a CPU: the reference, the fake, the Triton twin, the formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import warpsmith
from warpsmith.core import catalogue, dispatch, messages, references, twins
from warpsmith.core.catalogue import Op
from warpsmith.proof import testing, verify
from warpsmith.proof.verify.run import Run, as_tuple, requiring, usable_samples

OPS = list(catalogue.load().values())
#: What a CPU can check, kind by kind.
GROUPS: dict[str, tuple[str, ...]] = {
    "calls": ("samples",),
    **{kind: (kind,) for kind in verify.KINDS if kind not in ("samples", *verify.CUDA_KINDS)},
}


def applies(op: Op, group: str) -> bool:
    import warpsmith

    return {
        "public": op.name in warpsmith.__all__,
        "gradients": op.backward is not None,
        "errors": bool(op.errors),
        "properties": bool(op.properties),
    }.get(group, True)


def report(results: list[verify.Result]) -> str:
    failed = [result for result in results if not result.ok]
    lines = [f"{r.op} {r.kind} {r.label}: {r.detail}" for r in failed[:8]]
    return f"{len(failed)} of {len(results)} checks failed\n" + "\n".join(lines)


CASES = [
    pytest.param(op, group, id=f"{op.name}-{group}")
    for op in OPS
    for group in GROUPS
    if applies(op, group)
]


@pytest.mark.parametrize(("op", "group"), CASES)
def test_on_cpu(op: Op, group: str) -> None:
    if group == "triton" and not (twins.triton_available() and twins.interpreting()):
        pytest.skip("the Triton interpreter is off: this machine has a GPU, or no Triton")
    results = verify.verify([op], device="cpu", kinds=GROUPS[group])
    assert results, "nothing was checked"
    assert all(result.ok for result in results), report(results)


def _smooth(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Away from kinks, which PyTorch's operators have at integers and halves."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(a.shape, generator=generator, dtype=torch.float64).add_(1 / 64)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    )


def _depends_on(function: Callable[..., Any], leaves: list[Any]) -> bool:
    """Whether the results are finite and change with the arguments: those of a softmax over a
    single value do not, and the variance of one value is no number.
    """
    outs = [out for out in function(*leaves) if out.requires_grad]
    if not outs or not all(out.isfinite().all() for out in outs):
        return False
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in outs]
    wanted = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(outs, wanted, grads, allow_unused=True)
    return any(g is not None and bool((g.abs() > 1e-9).any()) for g in found)


def _values(args: tuple[Any, ...]) -> int:
    return sum(a.numel() for a in args if isinstance(a, torch.Tensor))


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.backward is not None and not op.steps], ids=str
)
def test_gradcheck(op: Op) -> None:
    """The backward formula against finite differences of the operator itself, in float64."""
    run = Run(op, torch.device("cpu"), frozenset(), op.dtypes, [])
    samples = sorted((args for _, args in usable_samples(run, "f32")), key=_values)
    samples = [args for args in samples if args[0].numel() <= 200] or samples[:1]
    overload = getattr(torch.ops.warpsmith, op.name)

    def function(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(out for out in as_tuple(overload(*args)) if out is not None)

    checked = set()
    for args in samples:
        # Of every combination of options and of tensors that are there, the smallest sample.
        kind = tuple(a.dim() if isinstance(a, torch.Tensor) else repr(a) for a in args)
        if kind in checked:
            continue
        leaves = list(requiring(_smooth(args)))
        if _depends_on(function, leaves):
            # Of many values a random combination of the gradients, instead of each by itself.
            many = _values(args) > 500
            assert torch.autograd.gradcheck(
                function, leaves, eps=1e-6, atol=1e-6, fast_mode=many
            ), kind
            checked.add(kind)
    assert checked, "no sample is small enough for finite differences"


@pytest.mark.parametrize("op", [op for op in OPS if op.backward is not None], ids=str)
def test_autograd_keeps_what_the_spec_says(op: Op) -> None:
    args = usable_samples(Run(op, torch.device("cpu"), frozenset(), op.dtypes, []), "f32")[0][1]
    leaves = requiring(args)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = getattr(torch.ops.warpsmith, op.name)(*leaves)
    given = dict(zip((*op.argument_names, *op.outputs), (*leaves, *op.results(out)), strict=True))
    known = tuple(given[name] for name in (*op.argument_names, *filter(None, op.outputs)))
    given |= {name: saved(*known) for name, saved in op.saves.items()}
    wanted = [given.get(name) for name in op.derivative_takes]
    addresses = [t.data_ptr() for t in wanted if isinstance(t, torch.Tensor)]
    assert [t.data_ptr() for t in kept] == addresses


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.backward is None and not op.written], ids=str
)
def test_what_has_no_derivative_says_so(op: Op) -> None:
    """A gradient that is not there is no zero: so that second derivatives never get lost."""
    run = Run(op, torch.device("cpu"), frozenset(), op.dtypes, [])
    args = usable_samples(run, op.dtypes[0])[0][1]
    leaves = requiring(args)
    outs = [o for o in as_tuple(getattr(torch.ops.warpsmith, op.name)(*leaves)) if o is not None]
    wanted = [out for out in outs if out.requires_grad]
    floating = any(isinstance(a, torch.Tensor) and a.requires_grad for a in leaves)
    assert len(wanted) == (sum(out.is_floating_point() for out in outs) if floating else 0)
    for out in wanted:
        called = messages.called_by(op)
        message = f"{called}: the derivative for warpsmith::{op.name} is not implemented"
        if "_backward" in op.name or op.name.endswith("_with_grad"):
            message = f"^{called}: second derivatives are not implemented$"
        with pytest.raises(RuntimeError, match=message):
            out.backward(torch.ones_like(out), retain_graph=True)


@pytest.mark.parametrize("op", [op for op in OPS if op.name in warpsmith.__all__], ids=str)
def test_forward_mode_is_refused(op: Op) -> None:
    run = Run(op, torch.device("cpu"), frozenset(), op.dtypes, [])
    args = list(usable_samples(run, op.dtypes[0])[0][1])
    public = dispatch.public(op)
    public(None, *args)
    slot = next(
        i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()
    )
    with forward_ad.dual_level():
        public(None, *args)
        args[slot] = forward_ad.make_dual(args[slot], torch.ones_like(args[slot]))
        for variant in (None, *(v.name for v in op.variants[:1])):
            with pytest.raises(NotImplementedError, match=f"{op.name}: forward-mode"):
                public(variant, *args)


def test_forward_mode_of_functions_is_refused() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match="silu: forward-mode"):
        torch.func.jvp(warpsmith.silu, (x,), (x,))


def test_products_have_second_derivatives() -> None:
    a, b = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(warpsmith.matmul, (a, b))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_float64_runs_the_reference(op: Op) -> None:
    run = Run(op, torch.device("cpu"), frozenset(), op.dtypes, [])
    args = references.upcast(usable_samples(run, op.dtypes[0])[0][1], torch.float64)
    out = testing.with_written(op, getattr(torch.ops.warpsmith, op.name))(*args)
    for ours, wanted in zip(as_tuple(out), as_tuple(op.reference(*args)), strict=True):
        if wanted is None:
            assert ours is None
            continue
        assert ours.dtype == wanted.dtype  # fp8, of which there is no comparison, where asked for
        torch.testing.assert_close(ours.double(), wanted.double(), rtol=1e-13, atol=1e-13)
    assert dispatch.which(op.name, *args).implementation == "reference"


@pytest.mark.parametrize("op", OPS, ids=str)
def test_what_is_no_tensor_in_memory_is_named(op: Op) -> None:
    """None, which PyTorch lets pass for a tensor, and a tensor without strides."""
    run = Run(op, torch.device("cpu"), frozenset(), op.dtypes, [])
    args = dispatch.normalise(op, usable_samples(run, op.dtypes[0])[0][1])
    call = getattr(torch.ops.warpsmith, op.name)
    arguments = torch._C.parse_schema(f"warpsmith::{op.schema}").arguments
    for i, (argument, given) in enumerate(zip(arguments, args, strict=True)):
        if not isinstance(given, torch.Tensor):
            continue
        if str(argument.type) == "Tensor":
            with pytest.raises(TypeError, match=f"{op.name}: expected {argument.name} to be a ten"):
                call(*args[:i], None, *args[i + 1 :])
        sparse = torch.sparse_coo_tensor(size=given.shape, dtype=given.dtype, check_invariants=True)
        with pytest.raises(NotImplementedError, match=f"{op.name}: expected {argument.name} to be"):
            call(*args[:i], sparse, *args[i + 1 :])


def test_a_missing_tensor_is_named_by_public_functions() -> None:
    with pytest.raises(TypeError, match="relu: expected x to be a tensor, got None"):
        warpsmith.relu(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rms_norm_backward: expected grad to be a tensor"):
        warpsmith.which("rms_norm_backward", None, torch.ones(2, 3), None, 1e-6)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_inputs_on_meta_give_outputs_on_meta(op: Op) -> None:
    for dtype in op.dtypes[:1]:
        for sample in [s for s in op.samples_for(dtype) if s.small][:6]:
            args = sample.make(op.inputs(dtype))
            real = getattr(torch.ops.warpsmith, op.name)(*args)
            meta = getattr(torch.ops.warpsmith, op.name)(
                *(
                    torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
                    if isinstance(a, torch.Tensor)
                    else a
                    for a in args
                )
            )
            for r, m in zip(op.results(real), op.results(meta), strict=True):
                if r is None or m is None:
                    assert r is m
                    continue
                assert m.device.type == "meta"
                assert (r.shape, r.dtype) == (m.shape, m.dtype), sample.label
