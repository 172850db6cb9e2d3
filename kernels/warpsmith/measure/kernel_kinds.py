"""What the GPU spends its time on, by kind of kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

#: By the names of kernels, the first that fits: of PyTorch and the libraries that it calls, of
#: torch.compile, which names what it has fused, of Liger, and ours.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("attention", r"flash|fmha|attention|sdpa|kv_cache|softmax_kernel|SoftMax"),
    ("rope", r"rope|rotary|fused.*cat.*neg|fused.*neg.*cat|fused.*_cos_|fused.*_sin_"),
    ("norms", r"(rms|layer|group)_?norm|(Layer|Group|RMS)Norm|RowwiseMoments|rsqrt|GammaBeta"),
    ("losses", r"cross_entropy|nll_loss|log_softmax|logsumexp"),
    ("elementwise", r"elementwise|_and_mul|swiglu|geglu|triton_poi|map_.*kernel|CatArray|copy_ker"),
    (
        "products",
        r"gemm|nvjet|cutlass|wgmma|xmma|matmul|linear|gemv|splitK|cublas|conv|fprop|dgrad|wgrad",
    ),
)
KINDS = (*(kind for kind, _ in _PATTERNS), "other")
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


def kind_of(kernel: str) -> str:
    """One of `KINDS` by the name of a kernel."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(kernel)), "other")


def shares(call: Callable[[], Any], calls: int = 3) -> dict[str, float]:
    """Each kind's part of the GPU time of a call, by `torch.profiler`; what takes none is left out.

    Args:
        call: launches the same kernels each time.
        calls: how often it is called.
    """
    call()
    torch.cuda.synchronize()
    # of the CPU's activity come names of regions, which span kernels
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return add_up(
        (event.name, float(event.time_range.elapsed_us()))
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    )


def add_up(times: Any) -> dict[str, float]:
    """Parts by kind of pairs of a kernel and its time."""
    found = dict.fromkeys(KINDS, 0.0)
    for kernel, time in times:
        found[kind_of(kernel)] += time
    total = sum(found.values())
    return {kind: round(time / total, 4) for kind, time in found.items() if time > 0}
