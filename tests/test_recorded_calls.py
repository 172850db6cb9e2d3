"""What C++ records of calls (`csrc/autograd`), beside the derivatives of the specs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from warpsmith.core import autograd, catalogue, dispatch, recorded_calls
from warpsmith.core.catalogue import DTYPES, Op
from warpsmith.native import recorded_library, toolchain
from warpsmith.proof.verify.run import small_samples

pytestmark = pytest.mark.skipif(shutil.which(toolchain.cxx()) is None, reason="no C++ compiler")

RECORDED = [catalogue.get(name) for name in recorded_calls.PLANS]


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled here, for all tests, as `load` does where it is switched on."""
    shared = tmp_path_factory.getbasetemp().parent / "warpsmith_autograd"
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "lock"):  # workers of pytest share it
        path = shared / recorded_library.file_name()
        if not path.is_file():
            recorded_library.build(shared)
    torch.ops.load_library(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_library, "load", lambda: True)
        yield path


def in_cpp(op: Op) -> Callable[..., Any]:
    return recorded_calls.recorded(op.name, autograd.derivative_of(op))


def in_python(op: Op) -> Callable[..., Any]:
    return autograd.eager(autograd.derivative_of(op), op.name)


def leaves(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().clone().requires_grad_()
        if isinstance(a, Tensor) and a.is_floating_point()
        else a
        for a in args
    )


def gradients(
    run: Callable[..., Any], args: tuple[Any, ...], used: int | None
) -> tuple[list[Any], list[Any]]:
    """Results and gradients of a call of which one output is used, or all are."""
    given = leaves(args)
    out = run(*given)
    outs = list(out) if isinstance(out, tuple) else [out]
    wanted = [o for o in outs if isinstance(o, Tensor) and o.requires_grad and o.numel()]
    wanted = wanted if used is None else wanted[used : used + 1]
    torch.manual_seed(7)
    seeds = [torch.randn(o.shape).to(o.dtype) for o in wanted]
    needing = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    return outs, list(torch.autograd.grad(wanted, needing, seeds, allow_unused=True))


def outcome(run: Callable[..., Any], args: tuple[Any, ...], used: int | None) -> Any:
    """The same, or what is said instead."""
    try:
        return gradients(run, args, used)
    except RuntimeError as error:
        return str(error)


def small(op: Op) -> list[tuple[Any, ...]]:
    """Arguments of a few of the operator's small samples, with something in them."""
    dtype = next(d for d in op.dtypes if DTYPES[op.signature(d).first] is torch.float32)
    samples = small_samples(op, dtype)
    made = (s.make(op.inputs(dtype)) for s in samples[:: max(1, len(samples) // 12)])
    calls = [dispatch.normalise(op, args) for args in made]
    return [
        args
        for args in calls
        if all(0 < a.numel() < 1 << 16 for a in args if isinstance(a, Tensor))
    ][:6]


@pytest.mark.parametrize("op", RECORDED, ids=str)
def test_it_is_the_derivative_of_the_spec(op: Op) -> None:
    calls = small(op)
    assert calls
    for args in calls:
        several = len(op.parsed.returns) > 1
        for used in (None, 0, 1) if several else (None,):
            mine, wanted = (outcome(way(op), args, used) for way in (in_cpp, in_python))
            if isinstance(wanted, str):  # no such output, none that depends on an argument
                assert mine == wanted
                continue
            for ours, theirs in zip(mine, wanted, strict=True):
                assert [o is None for o in ours] == [o is None for o in theirs]
                pairs = [(o, t) for o, t in zip(ours, theirs, strict=True) if o is not None]
                for o, t in pairs:
                    assert (o.dtype, o.shape) == (t.dtype, t.shape)
                    assert o.requires_grad == t.requires_grad
                    assert torch.equal(o.detach().nan_to_num(), t.detach().nan_to_num())


def test_an_output_may_have_the_name_of_an_argument() -> None:
    formula = autograd.derivative_of(catalogue.get("linear_epilogue"))
    code = recorded_calls._coder(formula.arguments, formula.outputs)
    assert [code(name) // recorded_calls._KIND for name in ("x", "keep", "amax", "grad_y")] == [
        0,
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([2000, 1000, 9], [-1, -1, -1], [0, -1], [-1, -1], [], []), "no source 9"),
        (([2000, 1000], [-1, -1], [0, -1], [-1, -1], [], []), "3 arguments are taken, not 2"),
        (([2000, 1000, 1], [-1, -1, -1], [1, -1], [-1, -1], [], []), "no output 1"),
        (([2000, 1000, 1], [-1, -1, -1], [0, -1], [-1, -1], [], [-3]), "no output -3"),
    ],
)
def test_a_plan_of_what_is_not_there_is_refused(
    columns: tuple[list[int], ...], message: str
) -> None:
    """`softmax(x, dim) -> y`, whose gradient takes three arguments."""
    signature = "(Tensor x, int dim=-1) -> Tensor y"
    with pytest.raises(RuntimeError, match=f"softmax: {message}"):
        torch.ops.warpsmith._record(
            "softmax", "wrong", signature, "softmax_backward", "softmax_backward", *columns
        )


# --- what autograd expects of a call --------------------------------------------------------------

NORM = catalogue.get("rms_norm")


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return in_cpp(NORM)(x, weight, 1e-6)  # type: ignore[no-any-return]


def rows() -> Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(3)).requires_grad_()


WEIGHT = torch.linspace(0.5, 2.0, 16)


def test_no_python_is_between_a_call_and_its_operator() -> None:
    y = rms_norm(rows(), WEIGHT)
    assert not isinstance(y.grad_fn, torch.autograd.function.BackwardCFunction)
    assert "Recorded" in y.grad_fn.name()


def test_what_is_kept_passes_the_hooks_of_saved_tensors() -> None:
    packed: list[Tensor] = []
    x = rows()
    logits, target = torch.randn(3, 5, requires_grad=True), torch.tensor([0, 4, 2])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        in_cpp(catalogue.get("softmax"))(x, -1)
        assert len(packed) == 1  # the result alone
        in_cpp(catalogue.get("cross_entropy_forward"))(logits, target, -100, 0.0, 0.0)
    assert len(packed) == 4  # logits, target, and lse once


def test_checkpoints_compute_it_again() -> None:
    x = rows()
    (wanted,) = torch.autograd.grad(rms_norm(x, WEIGHT).square().sum(), x)
    saved = checkpoint(rms_norm, x, WEIGHT, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(saved.square().sum(), x)[0], wanted)


def test_a_graph_is_retained_or_freed() -> None:
    x = rows()
    y = rms_norm(x, WEIGHT).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    assert torch.equal(torch.autograd.grad(y, x)[0], first[0])
    _, h = in_cpp(catalogue.get("add_rms_norm"))(x, rows(), WEIGHT, 1e-6, False)
    torch.autograd.grad(h.sum(), x)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(h.sum(), x)  # which passes by the norm
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, x)


def test_what_was_written_over_is_noticed() -> None:
    leaf = rows()
    x = leaf * 1
    y = rms_norm(x, WEIGHT)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_a_function_is_built_of_refuses_in_its_name() -> None:
    op = catalogue.get("add_rms_norm")
    x = rows()
    run = autograd.speaking("rms_norm", in_cpp(op))
    (dx,) = torch.autograd.grad(run(x, None, WEIGHT, 1e-6, True)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^rms_norm: second derivatives are not implemented"):
        dx.sum().backward()


@pytest.mark.parametrize("called", ["gelu", "gelu_tanh"])
def test_a_second_derivative_is_refused_in_the_name_of_the_function(called: str) -> None:
    formula = autograd.derivative_of(catalogue.get("gelu_tanh"), called)
    x = rows()
    y = recorded_calls.recorded("gelu_tanh", formula)(x)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"^{called}: second derivatives are not implemented"):
        dx.sum().backward()
    assert autograd._speaker.name is None


@pytest.mark.parametrize("name", ["rms_norm", "rms_norm_with_rstd"])
def test_compiled_autograd_takes_it(name: str) -> None:
    """Also beside an output that is a constant."""

    def run(x: Tensor) -> Tensor:
        out = in_cpp(catalogue.get(name))(x, WEIGHT, 1e-6)
        return out[0] if isinstance(out, tuple) else out

    x = rows()
    (wanted,) = torch.autograd.grad(run(x).square().sum(), x)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        run(x).square().sum().backward()
    torch.testing.assert_close(x.grad, wanted)


def test_threads_define_it_once() -> None:
    formula = autograd.derivative_of(catalogue.get("gelu"), "gelu_of_threads")
    barrier = threading.Barrier(8)

    def first_call(_: int) -> Tensor:
        barrier.wait()
        return recorded_calls.recorded("gelu", formula)(rows())

    with ThreadPoolExecutor(8) as workers:
        found = list(workers.map(first_call, range(8)))
    assert all(torch.equal(y, found[0]) for y in found)


def noted(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """What a mode does: notes whom it sees in `seen`."""
    self.seen.append(str(func))
    return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    __torch_function__ = noted


class SeesOperators(TorchDispatchMode):
    __torch_dispatch__ = noted


def test_modes_of_functions_see_no_overload() -> None:
    x, mode = rows(), SeesFunctions()
    mode.seen = []
    with mode:
        assert rms_norm(x, WEIGHT).grad_fn.name() == "rms_normBackward"
    assert mode.seen
    assert not any("record" in name for name in mode.seen)
    with torch.device("cpu"):  # a mode that only looks for tensors that are made
        assert "Recorded" in rms_norm(x, WEIGHT).grad_fn.name()


def test_modes_see_the_plain_operator() -> None:
    x, mode = rows(), SeesOperators()
    mode.seen = []
    with mode:
        rms_norm(x, WEIGHT).sum().backward()
    assert [name for name in mode.seen if "warpsmith" in name] == [
        "warpsmith.rms_norm.default",
        "warpsmith.rms_norm_backward.default",
    ]


def test_a_gradient_of_all_outputs_or_of_one() -> None:
    op = catalogue.get("add_rms_norm")
    x, residual, weight = rows(), rows(), WEIGHT.clone().requires_grad_()
    y, h = in_cpp(op)(x, residual, weight, 1e-6, False)
    seed = torch.randn(4, 16)
    dx, dresidual, dweight = torch.autograd.grad(
        h, (x, residual, weight), seed, retain_graph=True, allow_unused=True
    )
    assert torch.equal(dx, seed)
    assert torch.equal(dresidual, seed)
    assert dweight is None
    assert torch.autograd.grad(y, weight, seed)[0].shape == (16,)


def test_without_the_library_python_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_library, "load", lambda: False)
    assert rms_norm(rows(), WEIGHT).grad_fn.name() == "rms_normBackward"


def test_what_cannot_be_loaded_is_left(library: Path, tmp_path: Path) -> None:
    (tmp_path / recorded_library.file_name()).write_bytes(b"no library")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path))
        patch.setenv("WARPSMITH_RECORD", "1")
        with pytest.MonkeyPatch.context() as fresh:
            fresh.setattr(recorded_library, "_is_here", lambda: False)
            assert not recorded_library.loaded()
        assert recorded_library.loaded()  # what is here already
        patch.setenv("WARPSMITH_LIBRARY_DIR", str(library.parent))
        assert recorded_library.loaded()
        patch.setenv("WARPSMITH_RECORD", "0")
        assert not recorded_library.loaded()
