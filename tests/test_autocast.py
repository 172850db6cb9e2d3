"""`torch.autocast` over public functions: the dtypes that PyTorch's function of the same name, or
the calls that ours replaces, answers in, and gradients in the dtypes that were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

import warpsmith
from warpsmith.core import autocast, catalogue
from warpsmith.core.catalogue import Inputs
from warpsmith.measure import host_times

WIDE, NARROW = torch.float32, torch.bfloat16
#: The first tensor of a call, and all others.
GIVEN = {"16 bits": (NARROW, NARROW), "f32": (WIDE, WIDE), "f32 parameters": (NARROW, WIDE)}

#: What stays in the dtype of its rows, beside parameters or a stream in f32: the linear layer that
#: reads it would cast an f32 result down again.
ROWS = {
    "bias_gelu",
    "bias_gelu_tanh",
    "bias_dropout_add",
    "qk_norm_rope",
    "add_rms_norm",
    "add_layer_norm",
    "dropout_add_rms_norm",
    "dropout_add_layer_norm",
    "conv1d_group_norm",
}
#: Another answer than PyTorch's, with the reason.
OTHERS = {
    "matmul_tf32": "multiplies in f32, by its name",
    "gemv": "PyTorch casts `mv` on a GPU and refuses mixed dtypes on a CPU",
    "dot": "PyTorch refuses mixed dtypes on a CPU",
    "index_put": "PyTorch refuses mixed dtypes on a CPU",
    "index_add": "PyTorch refuses mixed dtypes on a CPU",
    "scaled_masked_softmax": "has the dtype of x where only the mask is in f32",
    "bias_scale_mask_softmax_dropout": "has the dtype of x where only the bias is in f32",
    "rope": "rotates q and k in one dtype",
}


def arguments(name: str, given: str) -> list[Any]:
    first, others = GIVEN[given]
    case = host_times.CASES[name]
    args = list(case.args(Inputs(WIDE)))
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point() and i not in case.constants:
            args[i] = a.to(first if i == 0 else others)
    return args


def ours(name: str) -> Any:
    return host_times.CASES[name].ours or getattr(warpsmith, name)


def dtypes(out: Any) -> list[torch.dtype]:
    return [o.dtype for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, Tensor)]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", host_times.CASES)
def test_dtypes_on_a_cpu(name: str, given: str) -> None:
    case, args = host_times.CASES[name], arguments(name, given)
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point() and i not in case.constants:
            a.requires_grad_()
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    with torch.autocast("cpu", NARROW):
        out = ours(name)(*args)
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
    grads = torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs])
    assert [g.dtype for g in grads] == [a.dtype for a in leaves]
    if name in ROWS:
        assert dtypes(out)[0] == (args[0].dtype if name != "conv1d_group_norm" else NARROW)
    elif name not in OTHERS:
        with torch.autocast("cpu", NARROW):
            assert dtypes(out) == dtypes(case.theirs(*args))


@pytest.fixture
def autocast_of_a_gpu() -> Iterator[None]:
    """That of CUDA, which needs no GPU for tensors without data."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", NARROW)
    yield
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", torch.float16)


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", host_times.CASES)
def test_dtypes_on_a_gpu(name: str, given: str, autocast_of_a_gpu: None) -> None:
    case = host_times.CASES[name]
    with FakeTensorMode():
        args = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda:0")
            if isinstance(a, Tensor)
            else a
            for a in arguments(name, given)
        ]
        found = dtypes(ours(name)(*args))
        if name in ROWS:
            assert found[0] == (args[0].dtype if name != "conv1d_group_norm" else NARROW)
        elif name == "matmul_tf32":
            assert found == [WIDE]
        elif name != "rope":
            try:
                wanted = dtypes(case.theirs(*args))
            except RuntimeError as error:  # a view within PyTorch, say
                if "not linked with support for cuda" not in str(error):
                    raise
            else:
                assert found == wanted


@pytest.mark.parametrize("name", ["linear", "matmul", "addmm"])
def test_products_are_cast_wherever_they_are_called(name: str) -> None:
    args = [a.requires_grad_() for a in arguments(name, "f32")]
    theirs = host_times.CASES[name].theirs

    def results(function: Any) -> list[Tensor]:
        with torch.autocast("cpu", NARROW):
            y = function(*args)
        return [y, *torch.autograd.grad(y.float().square().sum(), args)]

    wanted = results(theirs)
    compiled = torch.compile(ours(name), fullgraph=True, backend="aot_eager")
    for function in (ours(name), getattr(torch.ops.warpsmith, name), compiled):
        for a, b in zip(results(function), wanted, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-1)


def test_a_variant_takes_what_it_is_given() -> None:
    x, weight = torch.randn(4, 64), torch.randn(8, 64)
    with torch.autocast("cpu", NARROW):
        assert warpsmith.linear(x, weight, variant="f32_naive").dtype == WIDE


def test_double_and_fp8_stay() -> None:
    x, weight = torch.randn(4, 64).double(), torch.randn(8, 64).double()
    with torch.autocast("cpu", NARROW):
        assert warpsmith.linear(x, weight).dtype == torch.float64
        assert warpsmith.softmax(x.float().to(torch.float8_e4m3fn)).dtype == torch.float8_e4m3fn


def test_under_a_transform() -> None:
    x, weight = torch.randn(4, 64), torch.randn(8, 64)
    with torch.autocast("cpu", NARROW):
        found, wanted = (
            torch.func.grad(lambda w, f=f: f(x, w).float().square().sum())(weight)
            for f in (warpsmith.linear, F.linear)
        )
    assert found.dtype == WIDE
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-1)


def test_policies_name_what_there_is() -> None:
    ops = catalogue.load()
    for name, policy in autocast.POLICIES.items():
        if name in ops:
            assert set(policy.names) <= set(ops[name].argument_names), name
        else:
            schema = getattr(torch.ops.warpsmith, name).default._schema
            assert set(policy.names) <= {a.name for a in schema.arguments}, name
