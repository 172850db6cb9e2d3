"""What a call costs the host, as a user makes it: each public function that has a gradient, beside
PyTorch's function or the calls that it replaces, on tensors so small that the GPU keeps up.

Three times of each: without gradient, forward where an argument requires one, and forward with the
backward pass of `Tensor.backward`, whose gradients replace those of the step before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith
from warpsmith.core.catalogue import Inputs
from warpsmith.measure import timing

ROWS, COLS, GROUPS = 4, 64, 8

#: What is timed of a function, and how much of PyTorch's time it may take: so many times as much,
#: or so many microseconds more, whichever is larger.
BOUNDS = {"none_us": (1.3, 3.0), "forward_us": (1.5, 8.0), "both_us": (1.25, 30.0)}

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A call of a public function, and what it stands for. Floating-point tensors among `args`
    require a gradient where one is asked for.
    """

    args: Callable[[Inputs], tuple[Any, ...]]
    theirs: Callable[..., Any]
    #: Ours, where it is not the public function of these arguments.
    ours: Callable[..., Any] | None = None
    dtype: torch.dtype = torch.bfloat16
    #: Places of arguments that require none all the same.
    constants: tuple[int, ...] = ()


def _x(i: Inputs) -> tuple[Any, ...]:
    return (i.plain(ROWS, COLS),)


def _pair(i: Inputs) -> tuple[Any, ...]:
    return i.plain(ROWS, COLS), i.plain(ROWS, COLS, salt=1)


def _three(i: Inputs) -> tuple[Any, ...]:
    return *_pair(i), i.plain(ROWS, COLS, salt=2)


def _biased(i: Inputs) -> tuple[Any, ...]:
    return i.plain(ROWS, COLS), i.plain(COLS, salt=1)


def _affine(i: Inputs) -> tuple[Any, ...]:
    return *_biased(i), i.plain(COLS, salt=2)


def _residual(i: Inputs) -> tuple[Any, ...]:
    return *_pair(i), i.plain(COLS, salt=2)


def _residual_affine(i: Inputs) -> tuple[Any, ...]:
    return *_residual(i), i.plain(COLS, salt=3)


def _channels(i: Inputs) -> tuple[Any, ...]:
    return i.plain(2, COLS, 4, 4), GROUPS, i.plain(COLS, salt=1), i.plain(COLS, salt=2)


def _packed_layer(i: Inputs) -> tuple[Any, ...]:
    codes = torch.randint(0, 16, (COLS, COLS), generator=i.generator((COLS,)), device=i.device)
    words = torch.zeros(COLS // 8, COLS, dtype=torch.int32, device=i.device)
    for place in range(8):
        words |= (codes.t()[place::8] << 4 * place).to(torch.int32)
    scales = i.plain(1, COLS, salt=1)
    packed = warpsmith.repack_quantized_weight(words, scales, layout="gptq")
    return i.plain(ROWS, COLS), packed.weight, scales, (codes - 8).to(i.dtype) * scales.t()


def _layer(i: Inputs) -> tuple[Any, ...]:
    return i.plain(ROWS, COLS), i.plain(COLS, COLS, salt=1), i.plain(COLS, salt=2)


def _product(i: Inputs) -> tuple[Any, ...]:
    return i.plain(ROWS, COLS), i.plain(COLS, COLS, salt=1)


def _experts(i: Inputs) -> tuple[Any, ...]:
    ends = torch.tensor((1, ROWS), device=i.device, dtype=torch.int32)
    return i.plain(ROWS, COLS), i.plain(2, COLS, COLS, salt=1).mT, ends


def _grouped_mm(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    return F.grouped_mm(x, w, offs=offs)


def _two_layers(i: Inputs) -> tuple[Any, ...]:
    return *_product(i), i.plain(COLS, COLS, salt=2)


def _side_by_side(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def _mlp(i: Inputs) -> tuple[Any, ...]:
    return *_two_layers(i), i.plain(COLS, COLS, salt=3)


def _through_gate(x: Tensor, up: Tensor, down: Tensor, gate: Tensor) -> Tensor:
    return F.linear(_side_by_side(x, gate, up), down)


def _projections(i: Inputs) -> tuple[Any, ...]:
    return i.plain(1, ROWS, COLS), i.plain(COLS, COLS, salt=1)


def _dealt_out(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    parts = F.linear(x, weight).split((COLS // 2, COLS // 4, COLS // 4), -1)
    return tuple(part.unflatten(-1, (-1, COLS // 4)).contiguous() for part in parts)


def _classes(i: Inputs) -> Tensor:
    return torch.arange(ROWS, device=i.device)


def _heads(i: Inputs) -> tuple[Any, ...]:
    return tuple(i.plain(1, GROUPS, ROWS, COLS, salt=salt) for salt in range(3))


def _rotated(i: Inputs) -> tuple[Any, ...]:
    angles = torch.rand(ROWS, COLS // 2, device=i.device)
    q, k, _ = _heads(i)
    return q.transpose(1, 2), k.transpose(1, 2), angles.cos(), angles.sin()


def _half_turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (a.to(x.dtype).repeat(1, 2)[:, None] for a in (cos, sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _half_turn(q, cos, sin), _half_turn(k, cos, sin)


def _normed_and_rotated(i: Inputs) -> tuple[Any, ...]:
    q, k, cos, sin = _rotated(i)
    return q, k, i.plain(COLS, salt=3), i.plain(COLS, salt=4), cos, sin


def _qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    return _rope(_rms(q, q_weight), _rms(k, k_weight), cos, sin)


def _row_numbers(i: Inputs, count: int = ROWS) -> Tensor:
    return torch.arange(count, device=i.device)


def _packed(i: Inputs) -> tuple[Any, ...]:
    ends = torch.tensor((0, ROWS), device=i.device, dtype=torch.int32)
    return *(i.plain(ROWS, GROUPS, COLS, salt=salt) for salt in range(3)), ends


def _packed_alone(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def _noised(i: Inputs) -> tuple[Any, ...]:
    table = warpsmith.noise_table(torch.linspace(0.9, 0.1, 8, device=i.device))
    return *_pair(i), _row_numbers(i), table


def _add_noise(x: Tensor, noise: Tensor, t: Tensor, table: Tensor) -> Tensor:
    of_x, of_noise = table[t].to(x.dtype)[:, :, None].unbind(1)
    return of_x * x + of_noise * noise


def _signals(i: Inputs) -> tuple[Any, ...]:
    of_channels = (i.plain(COLS, salt=salt) for salt in (2, 3, 4))
    return i.plain(2, COLS, 8), i.plain(COLS, COLS, 3, salt=1), *of_channels, GROUPS


def _conv1d_group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, norm_weight: Tensor, norm_bias: Tensor, groups: int
) -> Tensor:
    return F.mish(
        F.group_norm(F.conv1d(x, weight, bias, padding=1), groups, norm_weight, norm_bias)
    )


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (COLS,), weight, 1e-6)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (COLS,), weight, bias)


def _of_sum(norm: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(x: Tensor, residual: Tensor, *affine: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return norm(h, *affine), h

    return run


def _dropped(norm: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(x: Tensor, residual: Tensor, *affine: Tensor) -> tuple[Tensor, Tensor]:
        h = F.dropout(x, 0.1) + residual
        return norm(h, *affine), h

    return run


def _gated(activation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, up: activation(x) * up


def _tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _fused_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), target)


def _over(name: str, theirs: Callable[..., Any]) -> Case:
    return Case(_x, lambda x: theirs(x, dim=-1), lambda x: getattr(warpsmith, name)(x, dim=-1))


#: By public function.
CASES: Mapping[str, Case] = {
    "add": Case(_pair, torch.add),
    "mul": Case(_pair, torch.mul),
    "mul_add": Case(_three, lambda x, y, z: x * y + z),
    "bias_gelu": Case(_biased, lambda x, bias: F.gelu(x + bias)),
    "bias_gelu_tanh": Case(_biased, lambda x, bias: _tanh(x + bias)),
    "dropout": Case(_x, lambda x: F.dropout(x, 0.1), lambda x: warpsmith.dropout(x, 0.1)),
    "bias_dropout_add": Case(
        lambda i: (*_biased(i), i.plain(ROWS, COLS, salt=2)),
        lambda x, bias, residual: F.dropout(x + bias, 0.1) + residual,
        lambda x, bias, residual: warpsmith.bias_dropout_add(x, bias, residual, 0.1)[0],
    ),
    "silu_and_mul": Case(_pair, _gated(F.silu)),
    "gelu_and_mul": Case(_pair, _gated(F.gelu)),
    "gelu_tanh_and_mul": Case(_pair, _gated(_tanh)),
    "glu": Case(_x, F.glu),
    "elu": Case(_x, F.elu),
    "gelu": Case(_x, F.gelu),
    "gelu_tanh": Case(_x, _tanh),
    "hardshrink": Case(_x, F.hardshrink),
    "hardswish": Case(_x, F.hardswish),
    "mish": Case(_x, F.mish),
    "quick_gelu": Case(_x, lambda x: x * torch.sigmoid(1.702 * x)),
    "relu": Case(_x, F.relu),
    "relu_squared": Case(_x, lambda x: torch.mul(F.relu(x), F.relu(x))),
    "sigmoid": Case(_x, torch.sigmoid),
    "silu": Case(_x, F.silu),
    "swish": Case(_x, F.silu),
    "weighted_sum": Case(
        _pair,
        lambda x, y: torch.add(x * 0.5, y, alpha=0.25),
        lambda x, y: warpsmith.weighted_sum((x, y), (0.5, 0.25)),
    ),
    "amax": _over("amax", torch.amax),
    "amin": _over("amin", torch.amin),
    "mean": _over("mean", torch.mean),
    "sum": _over("sum", torch.sum),
    "var": _over("var", torch.var),
    "cumsum": _over("cumsum", torch.cumsum),
    "embedding": Case(lambda i: (*_x(i), _row_numbers(i)), lambda x, index: F.embedding(index, x)),
    "gather_rows": Case(
        lambda i: (*_x(i), _row_numbers(i)), lambda x, index: x.index_select(0, index)
    ),
    "scatter_rows": Case(
        lambda i: (*_x(i), _row_numbers(i)),
        lambda x, index: x.new_zeros(ROWS, COLS).index_add(0, index, x),
        lambda x, index: warpsmith.scatter_rows(x, index, ROWS),
    ),
    "index_select": Case(lambda i: (*_x(i), 0, _row_numbers(i)), torch.index_select),
    "index_add": Case(
        lambda i: (i.plain(ROWS, COLS), 0, _row_numbers(i), i.plain(ROWS, COLS, salt=1)),
        torch.index_add,
    ),
    "index_put": Case(
        lambda i: (i.plain(ROWS, COLS), _row_numbers(i), i.plain(ROWS, COLS, salt=1)),
        lambda x, index, values: torch.index_put(x, (index,), values),
    ),
    "masked_fill": Case(
        lambda i: (*_x(i), torch.ones(ROWS, COLS, dtype=torch.bool, device=i.device), -1.0),
        torch.masked_fill,
    ),
    "rope": Case(_rotated, _rope, constants=(2, 3)),
    "qk_norm_rope": Case(_normed_and_rotated, _qk_norm_rope, constants=(4, 5)),
    "transpose": Case(_x, lambda x: x.mT.contiguous()),
    "permute": Case(
        lambda i: (i.plain(ROWS, GROUPS, COLS), (1, 0, 2)),
        lambda x, dims: x.permute(dims).contiguous(),
    ),
    "unpack_qkv": Case(
        lambda i: (i.plain(1, ROWS, 3 * GROUPS * COLS), GROUPS),
        lambda x, heads: tuple(
            p.contiguous() for p in x.view(1, ROWS, 3, heads, COLS).permute(2, 0, 3, 1, 4)
        ),
    ),
    "pack_qkv": Case(
        _heads, lambda *qkv: torch.stack(qkv).permute(1, 3, 0, 2, 4).reshape(1, ROWS, -1)
    ),
    "add_noise": Case(_noised, _add_noise, constants=(3,)),
    "upsample_nearest2d": Case(
        lambda i: (i.plain(1, GROUPS, 4, 4),),
        lambda x: F.interpolate(x, scale_factor=2.0),
        lambda x: warpsmith.upsample_nearest2d(x, scale_factor=2.0),
    ),
    "conv1d_group_norm": Case(_signals, _conv1d_group_norm),
    "reduce_sum": Case(_x, torch.sum),
    "dot": Case(lambda i: (i.plain(COLS), i.plain(COLS, salt=1)), torch.dot),
    "softmax": _over("softmax", F.softmax),
    "log_softmax": _over("log_softmax", F.log_softmax),
    "scaled_masked_softmax": Case(
        _pair,
        lambda x, mask: F.softmax(x * 0.125 + mask, -1),
        lambda x, mask: warpsmith.scaled_masked_softmax(x, mask, 0.125),
    ),
    "bias_scale_mask_softmax_dropout": Case(
        _pair,
        lambda x, bias: F.dropout(F.softmax(x * 0.125 + bias, -1), 0.1),
        lambda x, bias: warpsmith.bias_scale_mask_softmax_dropout(x, bias, scale=0.125, p=0.1)[0],
    ),
    "rms_norm": Case(_biased, _rms),
    "layer_norm": Case(_affine, _layer_norm),
    "add_rms_norm": Case(_residual, _of_sum(_rms)),
    "add_layer_norm": Case(_residual_affine, _of_sum(_layer_norm)),
    "dropout_add_rms_norm": Case(
        _residual,
        _dropped(_rms),
        lambda x, h, w: warpsmith.dropout_add_rms_norm(x, h, w, p=0.1),
    ),
    "dropout_add_layer_norm": Case(
        _residual_affine,
        _dropped(_layer_norm),
        lambda x, h, w, b: warpsmith.dropout_add_layer_norm(x, h, w, b, p=0.1),
    ),
    "group_norm": Case(_channels, F.group_norm),
    "cross_entropy": Case(lambda i: (*_x(i), _classes(i)), F.cross_entropy),
    "fused_linear_cross_entropy": Case(lambda i: (*_product(i), _classes(i)), _fused_loss),
    "bce_with_logits": Case(
        lambda i: (*_x(i), torch.rand(ROWS, COLS, device=i.device).to(i.dtype)),
        F.binary_cross_entropy_with_logits,
    ),
    "matmul": Case(_product, torch.matmul),
    "matmul_tf32": Case(_product, torch.matmul, dtype=torch.float32),
    "grouped_matmul": Case(_experts, _grouped_mm),
    "linear": Case(_layer, F.linear),
    "gated_linear": Case(_two_layers, _side_by_side),
    "fused_mlp": Case(
        _mlp, _through_gate, lambda x, up, down, gate: warpsmith.fused_mlp(x, up, down, gate)
    ),
    "fused_qkv": Case(
        _projections,
        _dealt_out,
        lambda x, w: warpsmith.fused_qkv(x, w, heads=2, kv_heads=1, head_dim=COLS // 4),
    ),
    "quantized_linear": Case(
        _packed_layer,
        lambda x, weight, scales, dense: F.linear(x, dense),
        lambda x, weight, scales, dense: warpsmith.quantized_linear(x, weight, scales),
        constants=(2, 3),
    ),
    "addmm": Case(lambda i: (i.plain(COLS, salt=3), *_product(i)), torch.addmm),
    "gemv": Case(lambda i: (i.plain(ROWS, COLS), i.plain(COLS, salt=1)), torch.mv),
    "flash_attention": Case(
        _heads,
        F.scaled_dot_product_attention,
        lambda q, k, v: warpsmith.flash_attention(q, k, v, layout="bhsd"),
    ),
    "flash_attention_varlen": Case(
        _packed,
        _packed_alone,
        lambda q, k, v, ends: warpsmith.flash_attention_varlen(q, k, v, ends, ends, ROWS, ROWS),
    ),
    "scaled_dot_product_attention": Case(_heads, F.scaled_dot_product_attention),
}


def _step(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], None]:
    """A call and its backward pass, as a training step makes them; of several outputs, all are
    used.
    """
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    out = function(*args)
    several = isinstance(out, tuple)
    used = [o.requires_grad for o in out] if several else []
    seeds = [torch.ones_like(o) for o in (out if several else (out,)) if o.requires_grad]

    def one() -> None:
        for leaf in leaves:
            leaf.grad = None
        function(*args).backward(seeds[0])

    def all_of_them() -> None:
        for leaf in leaves:
            leaf.grad = None
        outs = [o for o, wanted in zip(function(*args), used, strict=True) if wanted]
        torch.autograd.backward(outs, seeds)

    return all_of_them if several else one


def functions(name: str, device: str) -> dict[str, dict[str, Callable[[], Any]]]:
    """The calls to time of a public function: by what is timed, ours ("auto") and PyTorch's."""
    case = CASES[name]
    args = case.args(Inputs(case.dtype, device))
    leaves = tuple(
        a.detach().requires_grad_()
        if isinstance(a, Tensor) and a.is_floating_point() and slot not in case.constants
        else a
        for slot, a in enumerate(args)
    )
    found: dict[str, dict[str, Callable[[], Any]]] = {timed: {} for timed in BOUNDS}
    for impl, function in (("auto", case.ours or getattr(warpsmith, name)), ("torch", case.theirs)):
        found["none_us"][impl] = functools.partial(function, *args)
        found["forward_us"][impl] = functools.partial(function, *leaves)
        found["both_us"][impl] = _step(function, leaves)
    return found


def beyond(ours: Row, theirs: Row) -> list[str]:
    """Which of the times are beyond their bound."""
    return [
        timed
        for timed, (ratio, more) in BOUNDS.items()
        if ours[timed] > max(ratio * theirs[timed], theirs[timed] + more)
    ]


def measure(name: str, device: str = "cuda", *, calls: int = 100, batches: int = 21) -> list[Row]:
    """The rows of a public function: ours, and PyTorch's."""
    rows: dict[str, Row] = {impl: {"case": name, "impl": impl} for impl in ("auto", "torch")}
    for timed, pair in functions(name, device).items():
        for impl, time in timing.host_times(pair, calls=calls, batches=batches).items():
            rows[impl][timed] = round(time, 1)
    if too_long := beyond(rows["auto"], rows["torch"]):
        rows["auto"]["beyond"] = ", ".join(too_long)
    return list(rows.values())


def measure_all(
    names: Iterable[str], device: str, say: Callable[[str], None]
) -> Iterator[list[Row]]:
    """The rows of each public function, as they are known."""
    for name in names:
        ours, theirs = rows = measure(name, device)
        times = ", ".join(f"{timed[:-3]} {ours[timed]} / {theirs[timed]}" for timed in BOUNDS)
        say(f"{name}: {times}" + (f"; beyond: {ours['beyond']}" if "beyond" in ours else ""))
        yield rows
