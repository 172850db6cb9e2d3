"""Time and peak memory of attention from 512 to 16384 tokens, alone and within a transformer block:
naive, with a fused softmax, and without scores in memory:
`python benchmarks/attention_memory.py [--out <folder>]`.

`naive` is PyTorch's operators one by one: product, scale, mask, softmax, product. `fused` has
warpsmith's `scaled_masked_softmax` between the products, which reads the scores once and writes the
weights once. `flash` is warpsmith's `flash_attention`; `sdpa flash` and `sdpa cudnn` are PyTorch's
backends. All are causal, bf16, with the heads of Llama 3 8B, forward alone. `peak_mib` is the most
memory that a call holds on top of its inputs. Writes `attention_memory.json`: an implementation
whose answer is further from float32 than PyTorch's naive one by a factor of two gets no number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith
from warpsmith.core import json_files
from warpsmith.measure import bench, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.records import sources

NAME = "attention_memory"
HEADS, KV_HEADS, DIM, FFN = 32, 8, 128, 14336
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
#: Of the answer relative to its largest value, over that of `naive`.
MOST_ERROR_RATIO = 2.0
#: Answers are judged up to so many tokens: in float32 the scores of more need 32 GB and more.
MOST_JUDGED = 8192

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Calls = dict[str, Callable[[], Tensor]]

# --- attention: q [b, tokens, heads, d], k and v with fewer heads ---------------------------------


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) if group > 1 else x for x in (k, v))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = _heads_first(q, k, v)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ v).transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = _heads_first(q, k, v)
    weights = warpsmith.scaled_masked_softmax(q @ k.mT, scale=q.shape[-1] ** -0.5, causal=True)
    return (weights @ v).transpose(1, 2)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return warpsmith.flash_attention(q, k, v, causal=True)


def backend(which: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(which):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)

    return attend


def implementations(device: str) -> dict[str, Attend]:
    found: dict[str, Attend] = {"naive": naive, "fused": fused, "flash": flash}
    if device == "cuda":
        found["sdpa flash"] = backend(SDPBackend.FLASH_ATTENTION)
        found["sdpa cudnn"] = backend(SDPBackend.CUDNN_ATTENTION)
    return found


# --- a block --------------------------------------------------------------------------------------


class Block:
    """A decoder layer of Llama 3 8B, or a smaller one, without positions: what is not attention is
    the same whatever the attention.
    """

    def __init__(
        self, heads: int, kv_heads: int, dim: int, ffn: int, dtype: torch.dtype, device: str
    ) -> None:
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        width = heads * dim
        generator = torch.Generator(device).manual_seed(0)

        def weight(rows: int, cols: int) -> Tensor:
            made = torch.randn(rows, cols, generator=generator, device=device, dtype=dtype)
            return made.mul_(cols**-0.5)

        self.norms = torch.ones(2, width, device=device, dtype=dtype)
        self.qkv = weight((heads + 2 * kv_heads) * dim, width)
        self.out = weight(width, width)
        self.gate_up = weight(2 * ffn, width)
        self.down = weight(width, ffn)

    def __call__(self, attend: Attend, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        n = warpsmith.rms_norm(x, self.norms[0])
        rows = F.linear(n, self.qkv).view(batch, tokens, -1, self.dim)
        q, k, v = rows.split((self.heads, self.kv_heads, self.kv_heads), 2)
        attended = F.linear(attend(q, k, v).reshape(batch, tokens, width), self.out)
        n, x = warpsmith.add_rms_norm(attended, x, self.norms[1])
        return x + F.linear(warpsmith.silu_and_mul(F.linear(n, self.gate_up)), self.down)


# --- measuring ------------------------------------------------------------------------------------


def peak_mib(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).abs().max() / exact.abs().max())


def judged(functions: Calls, exact: Tensor | None, rows: dict[str, bench.Row]) -> Calls:
    """Those that run, and answer as exactly as `naive` does; the others' rows say why not."""
    kept: Calls = {}
    allowed = 0.0
    for name, call in functions.items():
        try:
            found = call()
        except Exception as error:  # out of memory, say; the others are still measured
            rows[name]["error"] = bench.first_line(error)
            continue
        if exact is not None:
            error_of = relative_error(found, exact)
            allowed = allowed or MOST_ERROR_RATIO * error_of
            if not error_of <= allowed:  # NaN is not
                rows[name]["error"] = f"relative error {error_of:.3g}, allowed {allowed:.3g}"
                continue
        kept[name] = call
    return kept


def measure(tokens: int, seconds: float, known: dict[str, Any]) -> list[bench.Row]:
    generator = torch.Generator("cuda").manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    q, k, v = (normal(1, tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    x = normal(1, tokens, HEADS * DIM)
    block = Block(HEADS, KV_HEADS, DIM, FFN, torch.bfloat16, "cuda")
    attends = implementations("cuda")
    exact = naive(q.float(), k.float(), v.float()) if tokens <= MOST_JUDGED else None
    flops = 2 * 2 * HEADS * DIM * tokens * (tokens + 1) // 2
    weights = (block.qkv, block.out, block.gate_up, block.down)
    products = 2 * tokens * sum(w.numel() for w in weights)
    found: list[bench.Row] = []
    alone: Calls = {n: lambda f=f: f(q, k, v) for n, f in attends.items()}  # type: ignore[misc]
    within: Calls = {n: lambda f=f: block(f, x) for n, f in attends.items()}  # type: ignore[misc]
    for what, calls, work, wide in (
        ("attention", alone, flops, exact),
        ("block", within, flops + products, None),
    ):
        rows: dict[str, bench.Row] = {
            n: {"case": f"bf16 {what} of {tokens} tokens", "impl": n} for n in calls
        }
        kept = judged(calls, wide, rows)
        for name, call in kept.items():
            torch.cuda.empty_cache()
            rows[name]["peak_mib"] = round(peak_mib(call), 1)
        timed = {name: lambda i, f=call: f() for name, call in kept.items()}
        for name, time in timing.measure(timed, sets=1, seconds=seconds).items():
            bench.fill_row(rows[name], time, known, "bf16", 0, work)
            print(rows[name])
        found += rows.values()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each implementation")
    options = parser.parse_args(arguments)
    limits.need_gpu()
    source = sources.of_attention("scaled_masked_softmax", "rms_norm", "add_rms_norm")
    record: dict[str, Any] = {"environment": limits.environment(), "source": source, "rows": []}
    folder = options.out or limits.results_dir()
    known = limits.ensure(folder)
    with torch.no_grad():
        for tokens in TOKENS:
            record["rows"] += measure(tokens, options.seconds, known)
            torch.cuda.empty_cache()
    json_files.write_json(record_path(folder, NAME), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
