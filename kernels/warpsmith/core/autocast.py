"""What `torch.autocast` makes of a call: which arguments are cast, and to what, by operator.

As PyTorch's function of the same name: products go to the dtype of autocast, norms, softmax, sums
and losses to f32 on a GPU (a CPU's autocast leaves them alone), and what has two operands to the
wider of their dtypes. What autocast casts is cast above autograd, so that gradients come back in
the dtype that was given. Variants that are called by name take what they are given.

Products that PyTorch has no rule for (`grouped_mm` refuses f32 weights beside 16-bit rows) are cast
as the others are.

An operator that is not listed is left alone: PyTorch's has no rule either (activations, `mean`), or
it takes weights in f32 beside 16-bit rows by itself (residual norms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import compiling

#: What autocast casts; f64 and fp8 stay what they are.
_CAST = frozenset((torch.float32, torch.float16, torch.bfloat16))
_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)

is_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


@dataclass(frozen=True)
class Policy:
    """What is done with the arguments of those names."""

    #: "lower": to the dtype of autocast; "f32"; "widest": to the widest of them; "first": to the
    #: dtype of the first of them.
    to: str
    names: tuple[str, ...]
    devices: tuple[str, ...] = ("cpu", "cuda")


def _lower(*names: str) -> Policy:
    return Policy("lower", names)


def _f32(*names: str) -> Policy:
    """As the list of CUDA's autocast says, which that of the CPU leaves out."""
    return Policy("f32", names, ("cuda",))


def _rms_norm() -> Policy:
    """The same, but that the lists of PyTorch 2.11 have none: its result has the dtype of x."""
    listed = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")
    return Policy("f32", ("x", "weight"), ("cuda",) if listed else ())


def _widest(*names: str) -> Policy:
    return Policy("widest", names)


def _first(*names: str) -> Policy:
    return Policy("first", names)


POLICIES: Mapping[str, Policy] = {
    # products, in the dtype of autocast
    "matmul": _lower("a", "b"),
    "linear": _lower("x", "weight", "bias"),
    "linear_epilogue": _lower("x", "weight", "bias", "residual"),
    "gated_linear": _lower("x", "w_gate", "w_up", "b_gate", "b_up"),
    "fused_qkv": _lower("x", "weight", "bias"),
    "quantized_linear": _lower("x", "scales", "bias"),
    "grouped_matmul": _lower("x", "w"),
    "addmm": _lower("c", "a", "b"),
    "gemv": _lower("a", "x"),
    "flash_attention": _lower("q", "k", "v", "bias", "gate"),
    "flash_attention_varlen": _lower("q", "k", "v", "bias", "gate"),
    # a cache keeps its dtype, which casting would copy in every call
    "attention_with_kv_cache": _first("k_cache", "q"),
    "store_kv": _first("k_cache", "k", "v"),
    # beside which the weight and its gradient stay in f32
    "fused_linear_cross_entropy": _lower("x"),
    "fused_linear_cross_entropy_rows": _lower("x"),
    "conv1d_group_norm_forward": _lower("x", "weight", "bias", "norm_weight", "norm_bias"),
    # whose name says in which dtype they multiply
    "matmul_tf32": Policy("f32", ("a", "b")),
    # in f32 on a GPU
    "rms_norm": _rms_norm(),
    "rms_norm_with_rstd": _rms_norm(),
    "layer_norm": _f32("x", "weight", "bias"),
    "layer_norm_with_rstd": _f32("x", "weight", "bias"),
    "group_norm": _f32("x", "weight", "bias"),
    "softmax": _f32("x"),
    "log_softmax": _f32("x"),
    "scaled_masked_softmax": _f32("x", "mask"),
    "bias_scale_mask_softmax_dropout": _f32("x", "bias", "mask"),
    "cumsum": _f32("x"),
    "sum": _f32("x"),
    "reduce_sum": _f32("x"),
    "upsample_nearest2d_forward": _f32("x"),
    # operands of several dtypes
    "mul_add": _widest("x", "y", "z"),
    "dot": _widest("x", "y"),
    "index_put": _widest("x", "values"),
    "bce_with_logits_forward": _widest("x", "target"),
    "pack_qkv": _widest("q", "k", "v"),
    "rope": _widest("q", "k"),
    "add_noise": _widest("x", "noise"),
    "weighted_sum_forward": _widest("x0", *(f"x{i}" for i in range(1, 8))),
    # parameters in f32 beside 16-bit rows, whose dtype what follows them has
    "bias_gelu": _first("x", "bias"),
    "bias_gelu_tanh": _first("x", "bias"),
    "bias_dropout_add": _first("x", "bias", "residual"),
    "unpack_qkv": _first("x", "bias"),
    "index_add": _first("x", "source"),
    "qk_norm_rope": _first("q", "k", "q_weight", "k_weight"),
}


def _target(policy: Policy, given: Sequence[Tensor], device: str) -> torch.dtype:
    if policy.to == "lower":
        return torch.get_autocast_dtype(device)
    if policy.to == "f32":
        return torch.float32
    if policy.to == "first":
        return given[0].dtype
    dtype = given[0].dtype
    for a in given[1:]:
        dtype = torch.promote_types(dtype, a.dtype)
    return dtype


def cast(
    policy: Policy, places: Sequence[int], device: str, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The arguments of a call as autocast wants them. `places` are those of the policy's names."""
    given = [
        args[i]
        for i in places
        if i < len(args) and isinstance(args[i], Tensor) and args[i].device.type == device
    ]
    if not given or any(a.is_floating_point() and a.dtype not in _CAST for a in given):
        return args
    given = [a for a in given if a.is_floating_point()]
    if not given:
        return args
    dtype = _target(policy, given, device)
    made = list(args)
    for i in places:
        if i < len(args) and isinstance(a := args[i], Tensor) and a.is_floating_point():
            made[i] = a.to(dtype)
    return tuple(made)


def is_on(x: Tensor) -> bool:
    """Whether autocast is on for the device of `x`; some, as "meta", have none."""
    if (x.is_cuda or x.is_cpu) and not torch.compiler.is_compiling() and not is_enabled():
        return False
    device = x.device.type
    return _has_autocast(device) and torch.is_autocast_enabled(device)


@compiling.constant
def _has_autocast(device: str) -> bool:
    """A constant of compiled code, as PyTorch 2.11 cannot compile the question."""
    return torch.amp.is_autocast_available(device)


def lowered(*given: Any) -> tuple[Any, ...]:
    """The tensors of a product in the dtype of autocast, where it is on: for functions that look at
    them before they call an operator.
    """
    x = given[0]
    if not torch.compiler.is_compiling() and not is_enabled():
        return given
    if not isinstance(x, Tensor) or (device := x.device.type) not in _KEYS:
        return given
    if not torch.is_autocast_enabled(device):
        return given
    return cast(_lower(), range(len(given)), device, given)


def off(x: Any) -> AbstractContextManager[Any]:
    """Within which autocast leaves calls on the device of `x` alone."""
    if not isinstance(x, Tensor) or x.device.type not in _KEYS:
        return nullcontext()
    if not torch.compiler.is_compiling() and not is_enabled():
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def register(library: torch.library.Library, name: str, arguments: Sequence[str]) -> None:
    """Registers what autocast does to a call of `warpsmith::name`, where there is a policy.

    Args:
        library: that defines the operator.
        name: the operator's.
        arguments: the names of its arguments, in order.
    """
    policy = POLICIES.get(name)
    if policy is None:
        return
    places = tuple(arguments.index(n) for n in policy.names)

    def of(device: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                default = getattr(torch.ops.warpsmith, name).default
                return default(*cast(policy, places, device, args))

        return run

    for device in policy.devices:
        library.impl(name, of(device), _KEYS[device])
