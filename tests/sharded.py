"""One of the processes of `test_sharding.py`: calls on sharded tensors beside the same unsharded.

Prints, as JSON, what went wrong with each case. On GPUs, where there are enough, by NCCL.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import warpsmith

#: Before the rules are there: a call has to find them.
warpsmith.gelu  # noqa: B018

from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

ROWS, TOKENS, COLS, CLASSES = 4, 6, 8, 10
R = Replicate()


def tensor(*shape: int, salt: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt + sum(shape)))


X, Y, Z = (tensor(ROWS, TOKENS, COLS, salt=k) for k in range(3))
W, B = tensor(COLS, salt=3), tensor(COLS, salt=4)
LOGITS = tensor(ROWS * TOKENS, CLASSES)
TARGET = torch.arange(ROWS * TOKENS) % CLASSES
TARGET[3] = -100


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    placements: tuple[Any, ...]
    #: Where the first result is to lie; None where that is not looked at.
    result: Any = None
    #: Places of tensors of which no gradient is taken.
    constants: tuple[int, ...] = ()
    #: The same unsharded, where that is another function.
    unsharded: Callable[..., Any] | None = None


def _dropped(function: Callable[..., Any], tensors: Any, placements: Any) -> Case:
    """Of two processes, each of which draws from a stream of its own, if it holds another part."""
    cut = placements[0]

    def by_parts(*given: Tensor) -> Any:
        found = []
        for k in range(2 if isinstance(cut, Shard) else 1):
            parts = (
                t.chunk(2, p.dim)[k] if isinstance(p, Shard) else t
                for t, p in zip(given, placements, strict=True)
            )
            found.append(function(*parts, seed=7, offset=3 + (k << 48)))
        if isinstance(found[0], tuple):
            return tuple(torch.cat(of, cut.dim) for of in zip(*found, strict=True))
        return torch.cat(found, cut.dim) if len(found) > 1 else found[0]

    def sharded(*given: Any) -> Any:
        return function(*given, seed=7, offset=3)

    return Case(sharded, tensors, placements, cut, unsharded=by_parts)


def _drops() -> dict[str, Case]:
    found = {}
    for label, cut in (("rows", Shard(0)), ("columns", Shard(2)), ("nothing", R)):
        found[f"dropout:{label}"] = _dropped(partial(warpsmith.dropout, p=0.4), (X,), (cut,))
        found[f"bias_dropout_add:{label}"] = _dropped(
            lambda x, b, r, **d: warpsmith.bias_dropout_add(x, b, r, 0.4, **d)[0],
            (X, B, Y),
            (cut, Shard(0) if label == "columns" else R, cut),
        )
    for dim in (0, 1):
        cut = Shard(dim)
        scale = tensor(ROWS, TOKENS)
        found[f"dropout_add_rms_norm:{dim}"] = _dropped(
            lambda x, r, w, s, **d: warpsmith.dropout_add_rms_norm(x, r, w, s, 0.4, **d),
            (X, Y, W, scale),
            (cut, cut, R, cut),
        )
        found[f"dropout_add_layer_norm:{dim}"] = _dropped(
            lambda x, r, w, b, s, **d: warpsmith.dropout_add_layer_norm(x, r, w, b, s, 0.4, **d),
            (X, Y, W, B, scale),
            (cut, cut, R, R, cut),
        )
        found[f"bias_scale_mask_softmax_dropout:dropped, {dim}"] = _dropped(
            lambda x, b, **d: warpsmith.bias_scale_mask_softmax_dropout(x, b, p=0.4, **d),
            (X, tensor(TOKENS, COLS)),
            (cut, Shard(0) if dim == 1 else R),
        )
    return found


def _elementwise() -> dict[str, Case]:
    found = {}
    one = "elu gelu gelu_tanh hardshrink hardswish mish quick_gelu relu sigmoid silu swish"
    for name in [*one.split(), "relu_squared"]:
        for dim in (0, 2):
            case = Case(getattr(warpsmith, name), (X,), (Shard(dim),), Shard(dim))
            found[f"{name}:{dim}"] = case
    for name in ("add", "mul"):
        function = getattr(warpsmith, name)
        found[f"{name}:rows"] = Case(function, (X, Y), (Shard(0), Shard(0)), Shard(0))
        found[f"{name}:row"] = Case(function, (X, W), (Shard(2), Shard(0)), Shard(2))
        found[f"{name}:whole row"] = Case(function, (X, W), (Shard(1), R), Shard(1))
    found["mul_add:rows"] = Case(warpsmith.mul_add, (X, W, Z), (Shard(1), R, Shard(1)), Shard(1))
    for name in ("bias_gelu", "bias_gelu_tanh"):
        function = getattr(warpsmith, name)
        found[f"{name}:rows"] = Case(function, (X, B), (Shard(0), R), Shard(0))
        found[f"{name}:columns"] = Case(function, (X, B), (Shard(2), Shard(0)), Shard(2))
    for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
        function = getattr(warpsmith, name)
        found[f"{name}:columns"] = Case(function, (X, Y), (Shard(2), Shard(2)), Shard(2))
        found[f"{name}:one"] = Case(function, (X,), (Shard(1),), Shard(1))
        found[f"{name}:one, columns"] = Case(function, (X,), (Shard(2),))
    found["glu:rows"] = Case(warpsmith.glu, (X,), (Shard(0),), Shard(0))
    found["glu:gathered"] = Case(warpsmith.glu, (X,), (Shard(2),))
    found["glu:along the second"] = Case(lambda x: warpsmith.glu(x, 1), (X,), (Shard(2),), Shard(2))
    for dim in (0, 2):
        found[f"weighted_sum:{dim}"] = Case(
            lambda *xs: warpsmith.weighted_sum(list(xs), [0.5, 2.0, -1.0]),
            (X, Y, Z),
            (Shard(dim),) * 3,
            Shard(dim),
        )
    return found


def _rows() -> dict[str, Case]:
    found = {}
    for name in ("softmax", "log_softmax"):
        function = getattr(warpsmith, name)
        found[f"{name}:rows"] = Case(function, (X,), (Shard(0),), Shard(0))
        found[f"{name}:gathered"] = Case(function, (X,), (Shard(2),))
        found[f"{name}:along the first"] = Case(
            lambda x, f=function: f(x, 0), (X,), (Shard(2),), Shard(2)
        )
    mask = tensor(TOKENS, COLS)
    excluded = tensor(ROWS, 1, COLS) > 0.5
    for label, placed, options in (
        ("samples", (Shard(0), R), {}),
        ("rows", (Shard(1), Shard(0)), {}),
        ("causal", (Shard(0), R), {"causal": True}),
    ):
        result = placed[0]
        found[f"scaled_masked_softmax:{label}"] = Case(
            lambda x, m, o=options: warpsmith.scaled_masked_softmax(x, m, 0.5, **o),
            (X, mask),
            placed,
            result,
        )
        found[f"bias_scale_mask_softmax_dropout:{label}"] = Case(
            lambda x, b, m, o=options: warpsmith.bias_scale_mask_softmax_dropout(x, b, m, 0.5, **o),
            (X, mask, excluded),
            (*placed, Shard(0) if result == Shard(0) else R),
            result,
        )
    found["scaled_masked_softmax:causal rows"] = Case(
        lambda x: warpsmith.scaled_masked_softmax(x, None, 0.5, True), (X,), (Shard(1),), R
    )
    found["scaled_masked_softmax:excluded"] = Case(
        lambda x, m: warpsmith.scaled_masked_softmax(x, m, 2.0), (X, excluded), (Shard(1), R)
    )
    for dim in (0, 1):
        cut = Shard(dim)
        found[f"rms_norm:{dim}"] = Case(warpsmith.rms_norm, (X, W), (cut, R), cut)
        found[f"layer_norm:{dim}"] = Case(warpsmith.layer_norm, (X, W, B), (cut, R, R), cut)
        found[f"add_rms_norm:{dim}"] = Case(warpsmith.add_rms_norm, (X, Y, W), (cut, cut, R), cut)
        found[f"add_layer_norm:{dim}"] = Case(
            warpsmith.add_layer_norm, (X, Y, W, B), (cut, cut, R, R), cut
        )
        found[f"rms_norm:{dim}, of its output"] = Case(
            lambda x, w: warpsmith.rms_norm(x, w, memory_efficient=True), (X, W), (cut, R), cut
        )
        found[f"layer_norm:{dim}, of its output"] = Case(
            lambda x, w, b: warpsmith.layer_norm(x, w, b, memory_efficient=True),
            (X, W, B),
            (cut, R, R),
            cut,
        )
    channels = tensor(ROWS, 6, 5), tensor(6), tensor(6, salt=1)
    for label, groups, placed, result in (
        ("samples", 3, (Shard(0), R, R), Shard(0)),
        ("groups", 2, (Shard(1), Shard(0), Shard(0)), Shard(1)),
        ("half a group", 3, (Shard(1), R, R), R),
        ("positions", 2, (Shard(2), R, R), R),
    ):
        found[f"group_norm:{label}"] = Case(
            lambda x, w, b, groups=groups: warpsmith.group_norm(x, groups, w, b, activation="silu"),
            channels,
            placed,
            result,
        )
    found["rms_norm:columns"] = Case(warpsmith.rms_norm, (X, W), (Shard(2), R))
    found["rms_norm:partial"] = Case(warpsmith.rms_norm, (X, W), (Partial(), R))
    return found


def _losses() -> dict[str, Case]:
    found = {}
    for reduction in ("none", "sum", "mean"):
        for dim in (0, 2):
            found[f"bce_with_logits:{reduction}, {dim}"] = Case(
                lambda x, t, r=reduction: warpsmith.bce_with_logits(x, t, reduction=r),
                (X, Y.sigmoid()),
                (Shard(dim), Shard(dim)),
            )
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "smoothed": {"label_smoothing": 0.1, "z_loss": 1e-2},
        "each": {"reduction": "none"},
        "sum": {"reduction": "sum"},
    }
    for label, given in options.items():
        for where, dim in (("rows", 0), ("classes", 1)):
            found[f"cross_entropy:{label}, {where}"] = Case(
                lambda x, t, given=given: warpsmith.cross_entropy(x, t, **given),
                (LOGITS, TARGET),
                (Shard(dim), Shard(0) if dim == 0 else R),
            )
    shares = tensor(ROWS * TOKENS, CLASSES, salt=1).softmax(-1)
    for where, dim in (("rows", 0), ("classes", 1)):
        found[f"cross_entropy:probabilities, {where}"] = Case(
            warpsmith.cross_entropy, (LOGITS, shares), (Shard(dim), Shard(dim)), constants=(1,)
        )
        found[f"cross_entropy:capped, {where}"] = Case(
            lambda x, t: warpsmith.cross_entropy(
                x, t, softcap=3.0, inplace_backward=True, return_lse=True
            ),
            (LOGITS, TARGET),
            (Shard(dim), Shard(0) if dim == 0 else R),
        )
    d_rows, weight, bias = tensor(ROWS * TOKENS, COLS), tensor(CLASSES, COLS), tensor(CLASSES)
    weights = tensor(CLASSES, salt=1).abs(), tensor(ROWS * TOKENS, salt=2).abs()
    fused: dict[str, dict[str, Any]] = {
        "mean": {},
        "sum": {"reduction": "sum", "label_smoothing": 0.1, "z_loss": 1e-2},
        "each": {"reduction": "none", "softcap": 3.0, "chunk_rows": 7},
    }
    for label, given in fused.items():
        for where, placed in (
            ("rows", (Shard(0), R, Shard(0), R)),
            ("classes", (R, Shard(0), R, Shard(0))),
            ("neither", (R, R, R, R)),
        ):
            found[f"fused_linear_cross_entropy:{label}, {where}"] = Case(
                lambda x, w, t, b, given=given: warpsmith.fused_linear_cross_entropy(
                    x, w, t, b, **given
                ),
                (d_rows, weight, TARGET, bias),
                placed,
            )
    for where, placed in (
        ("rows", (Shard(0), R, Shard(0), R, Shard(0))),
        ("classes", (R, Shard(0), R, R, R)),
    ):
        found[f"fused_linear_cross_entropy:weighted, {where}"] = Case(
            lambda x, w, t, c, k: warpsmith.fused_linear_cross_entropy(
                x, w, t, class_weight=c, token_weight=k
            ),
            (d_rows, weight, TARGET, *weights),
            placed,
            constants=(3, 4),
        )
    odd = LOGITS[:, :7]
    found["cross_entropy:classes that do not divide"] = Case(
        warpsmith.cross_entropy, (odd, TARGET.where(TARGET < 7, 2)), (Shard(1), R)
    )
    return found


def _products() -> dict[str, Case]:
    left, right = tensor(ROWS, COLS), tensor(COLS, 6)
    batches = tensor(ROWS, TOKENS, COLS), tensor(ROWS, COLS, 6)
    weight, bias = tensor(6, COLS), tensor(6, salt=1)
    product, linear = warpsmith.matmul, warpsmith.linear
    return {
        "matmul:rows": Case(product, (left, right), (Shard(0), R), Shard(0)),
        "matmul:columns": Case(product, (left, right), (R, Shard(1)), Shard(1)),
        "matmul:sums": Case(product, (left, right), (Shard(1), Shard(0)), Partial()),
        "matmul:batches": Case(product, batches, (Shard(0), Shard(0)), Shard(0)),
        "matmul:rows of batches": Case(product, (X, right), (Shard(0), R), Shard(0)),
        "linear:rows": Case(linear, (X, weight, bias), (Shard(0), R, R), Shard(0)),
        "linear:sequence": Case(linear, (X, weight, bias), (Shard(1), R, R)),
        "linear:columns": Case(linear, (X, weight, bias), (R, Shard(0), Shard(0)), Shard(2)),
        "linear:sums": Case(linear, (X, weight), (Shard(2), Shard(1)), Partial()),
        "linear:sums and a bias": Case(linear, (X, weight, bias), (Shard(2), Shard(1), R)),
        "linear:activation": Case(
            lambda x, w, b: linear(x, w, b, "gelu"),
            (X, weight, bias),
            (R, Shard(0), Shard(0)),
            Shard(2),
        ),
    }


def _epilogues() -> dict[str, Case]:
    """What `linear` does beside the product."""
    weight, bias, residual = tensor(6, COLS), tensor(6, salt=1), tensor(ROWS, TOKENS, 6)
    linear = warpsmith.linear
    whole: dict[str, Any] = {"scale": 0.5}
    options: dict[str, dict[str, Any]] = {
        "scaled": whole,
        "kept": {**whole, "keep": True},
        "activated": {"activation": "silu", "keep": True, "batch_invariant": True},
        "largest": {"activation": "gelu", "amax": True},
    }
    found = {}
    for where, placed, result in (
        ("rows", (Shard(0), R, R, Shard(0)), Shard(0)),
        ("columns", (R, Shard(0), Shard(0), Shard(2)), Shard(2)),
        ("sums", (Shard(2), Shard(1), R, R), None),
    ):
        for label, given in options.items():
            found[f"linear:{label}, {where}"] = Case(
                lambda x, w, b, r, given=given: linear(x, w, b, residual=r, **given),
                (X, weight, bias, residual),
                placed,
                result,
            )
        # the same but for the activation, of which PyTorch is to look the placements up again
        for activation in ("none", "gelu"):
            found[f"linear:{activation} of one batch, {where}"] = Case(
                lambda x, w, b, a=activation: linear(x, w, b, a, batch_invariant=True),
                (X, weight, bias),
                placed[:3],
            )
        found[f"linear:a bias in f32, {where}"] = Case(
            lambda x, w, b: linear(x.bfloat16(), w.bfloat16(), b).float(),
            (X.sign(), weight.sign(), bias.sign()),  # whose sums 16 bits hold, of parts too
            placed[:3],
        )
    return found


CASES: dict[str, Case | None] = {
    **_elementwise(),
    **_drops(),
    **_rows(),
    **_losses(),
    **_products(),
    **_epilogues(),
    "cross_entropy:refused": None,
    "dropout:drawn": None,
    "FSDP2": None,
}


def whole(x: Any) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out


def results(function: Callable[..., Any], tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
    """All results, and the gradients of the sum of their squares."""
    out = function(*tensors)
    outs = out if isinstance(out, tuple) else (out,)
    leaves = [t for t in tensors if t.requires_grad]
    total = sum(o.square().sum() for o in outs)
    return outs, list(torch.autograd.grad(total, leaves))


def check(case: Case, mesh: Any, device: str) -> None:
    plain = [t.to(device).clone() for t in case.tensors]
    sharded = []
    for t, p in zip(plain, case.placements, strict=True):
        if isinstance(p, Partial):  # of which each process holds a half
            sharded.append(DTensor.from_local(t / mesh.size(), mesh, [p], run_check=False))
        else:
            sharded.append(distribute_tensor(t, mesh, [p]))
    for given in (plain, sharded):
        for i, t in enumerate(given):
            if t.is_floating_point() and i not in case.constants:
                given[i] = t.detach().requires_grad_()
    wanted, wanted_grads = results(case.unsharded or case.function, plain)
    found, grads = results(case.function, sharded)
    if case.result is not None:
        placed = found[0].placements
        assert placed == (case.result,), f"lies as {placed}, not as {case.result}"
    for a, b in zip([*found, *grads], [*wanted, *wanted_grads], strict=True):
        # an element may be a small difference of large ones: gradients of a sum's square reach
        # 1,500, and f32 leaves 2e-4 of each, in whatever order they are summed
        largest = float(b.abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(whole(a), b, rtol=1e-4, atol=max(1e-5, 2.0**-21 * largest))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(COLS))
        self.gate = torch.nn.Parameter(tensor(2 * COLS, COLS) / 3)
        self.down = torch.nn.Parameter(tensor(COLS, COLS) / 3)

    def forward(self, h: Tensor) -> Tensor:
        y = warpsmith.rms_norm(h, self.norm)
        y = warpsmith.silu_and_mul(warpsmith.linear(y, self.gate))
        return h + warpsmith.linear(y, self.down)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Parameter(tensor(CLASSES, COLS))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return warpsmith.fused_linear_cross_entropy(x.flatten(0, 1), self.head, target)


def check_fsdp(mesh: Any, device: str) -> None:
    from torch.distributed.fsdp import fully_shard

    rank, count = dist.get_rank(), dist.get_world_size()
    plain, model = Model().to(device), Model().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    target = TARGET.clamp(min=0).to(device)
    plain(X.to(device), target).backward()
    rows = X.to(device).chunk(count)[rank]
    model(rows, target.view(ROWS, TOKENS).chunk(count)[rank].flatten()).backward()
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert a.grad is not None, name
        torch.testing.assert_close(whole(a.grad), b.grad, rtol=1e-4, atol=1e-5)


def refused(said: str, call: Callable[[], Any]) -> None:
    """Not by `pytest.raises`, whose failure is no Exception, and would end all cases."""
    problem = None
    try:
        call()
    except (RuntimeError, ValueError) as error:
        problem = str(error)
    if problem is None or not re.search(said, problem):
        raise AssertionError(f"expected {said!r}, got {problem!r}")


def check_drawn(mesh: Any, device: str) -> None:
    """Without a seed: what both processes hold has one mask, or the call is refused."""
    x = distribute_tensor(torch.ones(64, device=device), mesh, [R])
    torch.manual_seed(dist.get_rank())
    refused("dropout: expected one seed on all processes", lambda: warpsmith.dropout(x))
    torch.manual_seed(5)
    mine = warpsmith.dropout(x).to_local()
    both = mine.new_empty(2 * 64)
    dist.all_gather_into_tensor(both, mine)
    assert 0 < int(mine.count_nonzero()) < 64
    assert torch.equal(*both.chunk(2))


def check_refused(mesh: Any, device: str) -> None:
    """What there is no rule for names the function that was called, and what to do."""
    x, w = (distribute_tensor(t.to(device), mesh, [R]) for t in (X, W))
    weight = distribute_tensor(tensor(6, COLS).to(device), mesh, [R])
    at = distribute_tensor(TARGET[: ROWS * TOKENS].to(device), mesh, [R])
    logits = distribute_tensor(LOGITS.to(device), mesh, [R])
    calls: dict[str, Callable[[], Any]] = {
        "cross_entropy: expected no return_accuracy of sharded logits; compare the argmax": (
            lambda: warpsmith.cross_entropy(logits, at, return_accuracy=True)
        ),
        "rms_norm: expected no out beside sharded tensors; hand it x.to_local": (
            lambda: warpsmith.rms_norm(x, w, out=torch.empty_like(x))
        ),
        "amax: expected no sharded tensors; hand it x.to_local": (lambda: warpsmith.amax(x)),
        "fused_mlp: expected no sharded tensors; hand it x.to_local": (
            lambda: warpsmith.fused_mlp(x, weight, weight.t(), weight)
        ),
        "gated_linear: expected no sharded tensors; hand it x.to_local": (
            lambda: warpsmith.gated_linear(x, weight, weight)
        ),
        "fused_qkv: expected no sharded tensors; hand it x.to_local": (
            lambda: warpsmith.fused_qkv(x, weight, heads=1, kv_heads=1, head_dim=2)
        ),
        "rope: expected either all its tensors to be DTensors or none": (
            lambda: warpsmith.rope(x.view(ROWS, TOKENS, 1, COLS), base=1e4)
        ),
        "rms_norm: expected either all its tensors to be DTensors or none": (
            lambda: warpsmith.rms_norm(x, W.to(device))
        ),
        "linear: expected no grad_weight while compiling.* or of sharded tensors": (
            lambda: warpsmith.linear(x, weight, grad_weight=torch.zeros(6, COLS, device=device))
        ),
    }
    for said, call in calls.items():
        refused(said, call)


#: Makes products as a GPU makes those of few rows, of which it has no kernel that does all.
IN_STEPS = "--in-steps"


def in_steps() -> list[str]:
    return [n for n in CASES if n.startswith("linear:") or n == "cross_entropy:refused"]


OTHERS = {
    "cross_entropy:refused": check_refused,
    "dropout:drawn": check_drawn,
    "FSDP2": check_fsdp,
}


def main() -> None:
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= count
    device = "cuda" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    mesh = init_device_mesh(device, (count,))
    said = {}
    cases = CASES
    if IN_STEPS in sys.argv:
        for name in ("linear_epilogue", "gated_linear", "fused_qkv"):
            vars(sys.modules[f"warpsmith.gemm.{name}"])["serves"] = lambda *_: False
        cases = {n: CASES[n] for n in in_steps()}
    for name, case in cases.items():
        try:
            if case is None:
                OTHERS[name](mesh, device)
            else:
                check(case, mesh, device)
            said[name] = ""
        except Exception:
            said[name] = traceback.format_exc()[-1500:]
    dist.destroy_process_group()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
