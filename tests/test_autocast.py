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
    "grouped_matmul": "a product, which PyTorch has no rule for: it refuses f32 on a GPU",
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
        elif name == "grouped_matmul":
            assert found == [NARROW]
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


#: Products of layers with what follows them, and the same in PyTorch: of x, a weight and a bias.
LAYERS: dict[str, tuple[Any, Any]] = {
    "a residual": (
        lambda x, w, b: warpsmith.linear(x, w, b, residual=torch.ones(4, 64)),
        lambda x, w, b: F.linear(x, w, b) + torch.ones(4, 64, dtype=NARROW),
    ),
    "linear_epilogue": (
        lambda x, w, b: torch.ops.warpsmith.linear_epilogue(x, w, b, None, 1.0, "relu", False)[0],
        lambda x, w, b: F.linear(x, w, b).relu(),
    ),
    "gated_linear": (
        lambda x, w, b: warpsmith.gated_linear(x, w, w, b, b),
        lambda x, w, b: F.silu(F.linear(x, w, b)) * F.linear(x, w, b),
    ),
    "fused_mlp": (
        lambda x, w, b: warpsmith.fused_mlp(x, w, w, w, b, b, b, residual=x),
        lambda x, w, b: (
            F.linear(F.silu(F.linear(x, w, b)) * F.linear(x, w, b), w, b) + x.to(NARROW)
        ),
    ),
    "fused_qkv": (
        lambda x, w, b: torch.cat(
            warpsmith.fused_qkv(x[None], w, b, heads=2, kv_heads=1, head_dim=16), 2
        ).view(4, 64),
        F.linear,
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_one_kernel_are_products_too(name: str, given: str, compiled: bool) -> None:
    ours, theirs = LAYERS[name]
    if compiled:
        ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
    first, others = GIVEN[given]
    made = [torch.randn(*shape) / 8 for shape in ((4, 64), (64, 64), (64,))]
    args = [a.to(first if i == 0 else others).requires_grad_() for i, a in enumerate(made)]
    results = []
    for function in (ours, theirs):
        with torch.autocast("cpu", NARROW):
            y = function(*args)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), args)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)


def test_the_weight_s_buffer_takes_what_autocast_multiplies() -> None:
    x, w = torch.randn(4, 64), torch.randn(8, 64).requires_grad_()
    found = torch.zeros(8, 64)
    for weight_buffer in ({"grad_weight": found}, {}):
        with torch.autocast("cpu", NARROW):
            y = warpsmith.linear(x, w, None, "silu", residual=torch.ones(4, 8), **weight_buffer)
        assert y.dtype == NARROW
        y.float().sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(found, w.grad, rtol=2e-2, atol=2e-2)


def test_few_rows_of_a_gpu_go_the_same_way(autocast_of_a_gpu: None) -> None:
    """Those that several kernels serve, in f32 beside 16 bits."""
    with FakeTensorMode():
        x = torch.empty(4, 64, device="cuda:0", dtype=NARROW)
        w, b = torch.empty(64, 64, device="cuda:0"), torch.empty(64, device="cuda:0")
        for y in (
            warpsmith.gated_linear(x, w, w, b, b),
            warpsmith.fused_mlp(x, w, w, w, b, b, b, residual=x.float()),
            warpsmith.linear(x, w, b, residual=x.float()),
        ):
            assert y.dtype == NARROW


def test_experts_in_f32_are_cast() -> None:
    x, w = torch.randn(6, 64).to(NARROW), torch.randn(2, 64, 8)
    offsets = torch.tensor([2, 6], dtype=torch.int32)
    for each in (w, torch.randn(6, 8)):
        rows = x if each.dim() == 3 else x.t()
        each.requires_grad_()
        with torch.autocast("cpu", NARROW):
            y = warpsmith.grouped_matmul(rows, each, offsets)
        assert y.dtype == NARROW
        wanted = warpsmith.grouped_matmul(rows, each.detach().to(NARROW), offsets)
        assert torch.equal(y, wanted)
        (grad,) = torch.autograd.grad(y.float().sum(), each)
        assert grad.dtype == WIDE


def test_scales_of_packed_weights_are_cast() -> None:
    codes = torch.randint(-128, 128, (64, 64), dtype=torch.int8)
    packed = warpsmith.repack_quantized_weight(codes, torch.full((64,), 2**-7), layout="int8")
    x = torch.randn(4, 64)
    with torch.autocast("cpu", NARROW):
        y = warpsmith.quantized_linear(x, *packed)
    assert y.dtype == NARROW
    torch.testing.assert_close(
        y.float(), x.to(NARROW).float() @ codes.float().t() / 128, rtol=1e-2, atol=1e-2
    )


def test_bits_that_pass_as_floats_are_not_cast(autocast_of_a_gpu: None) -> None:
    """Integers of 16 bits, which are moved as f16; an f32 in their place would have other sizes."""
    with FakeTensorMode():
        x = torch.empty(1, 2, 3, 4, dtype=torch.int16, device="cuda:0")
        y = warpsmith.upsample_nearest2d(x, (6, 8))
        assert y.dtype == torch.int16
        assert y.shape == (1, 2, 6, 8)


@pytest.mark.parametrize("function", ["flash_attention", "flash_attention_varlen"])
def test_a_gate_of_attention_is_cast(function: str) -> None:
    q, k, gate = (torch.randn(1, n, 2, 8, requires_grad=True) for n in (4, 6, 4))
    lengths: tuple[Any, ...] = ()
    if function == "flash_attention_varlen":
        starts = [torch.tensor([0, n], dtype=torch.int32) for n in (4, 6)]
        lengths = (*starts, 4, 6)
    with torch.autocast("cpu", NARROW):
        given = (x[0] if lengths else x for x in (q, k, k))
        gates = gate[0] if lengths else gate
        y = getattr(warpsmith, function)(*given, *lengths, gate=gates)
    assert y.dtype == NARROW
    assert [g.dtype for g in torch.autograd.grad(y.float().sum(), (q, k, gate))] == [WIDE] * 3


@pytest.mark.parametrize("given", [NARROW, WIDE], ids=str)
@pytest.mark.parametrize("cache", [NARROW, WIDE, torch.float8_e4m3fn], ids=str)
def test_a_cache_keeps_its_dtype(cache: torch.dtype, given: torch.dtype) -> None:
    caches = [torch.zeros(2, 9, 2, 8).to(cache) for _ in "kv"]
    q, k = torch.randn(2, 1, 4, 8).to(given), torch.randn(2, 1, 2, 8).to(given)
    lengths = torch.zeros(2, dtype=torch.int32)
    fp8 = cache == torch.float8_e4m3fn
    scales = dict.fromkeys(("k_scale", "v_scale"), torch.ones(())) if fp8 else {}
    with torch.autocast("cpu", NARROW):
        out = warpsmith.attention_with_kv_cache(q, *caches, lengths, k=k, v=k, **scales)
    assert out.dtype == (given if fp8 else cache)
    for x in caches:
        assert x.dtype == cache
        assert x[:, 0].float().ne(0).any()
        torch.testing.assert_close(x[:, 0].float(), k[:, 0].float(), rtol=0.1, atol=0.02)
