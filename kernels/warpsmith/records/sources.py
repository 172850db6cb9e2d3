"""What the records of scripts in `benchmarks` depend on, which are no operator's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Composite
from warpsmith.native import csrc, python_code
from warpsmith.native.code_lock import Lock


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _of_kernels(lock: Lock | None, name: str) -> str:
    """What an operator launches where it is timed."""
    return lock.ops.get(name, {}).get("timed", "") if lock else ""


def _of_rung(lock: Lock | None, name: str) -> str:
    """The kernels of a rung, `operator/rung`."""
    return lock.rungs.get(name, {}).get("sass", "") if lock else ""


def of_composite(composite: Composite) -> str:
    """What its times speak for: the kernels of its operators, and its own Python."""
    lock = Lock.load()
    kernels = (_of_kernels(lock, name) for name in composite.operators)
    return _digest([*kernels, python_code.of_module(composite.module)])


def of_mma_peak() -> str:
    """The same for what `mma.sync` reaches: the loops over registers, and the rungs of products
    beside them.
    """
    lock = Lock.load()
    names = (f"{op}/{rung}" for op in ("matmul", "matmul_tf32") for rung in ("mma_peak", "mma_tma"))
    kernels = (_of_rung(lock, name) for name in names)
    return _digest([csrc.file_hash(csrc.CSRC / "selftest/mma_rate.cu"), *kernels])


def of_attention(*beside: str) -> str:
    """The same for layers with attention in them: what that launches, and operators beside it."""
    lock = Lock.load()
    names = ("flash_attention", "flash_attention_backward", "attention_with_kv_cache", *beside)
    composite = catalogue.composites()["scaled_dot_product_attention"]
    kernels = (_of_kernels(lock, name) for name in names)
    return _digest([*kernels, python_code.of_module(composite.module)])


#: What patched models call.
_IN_MODELS = (
    *("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "group_norm"),
    *("silu_and_mul", "gelu_and_mul", "gelu", "gelu_tanh", "rope", "qk_norm_rope"),
    *("gated_linear", "cross_entropy_forward"),
)


def of_models() -> str:
    """The same for whole models: what is called of them when they are patched, and how."""
    modules = (f"warpsmith.patching.{name}" for name in ("architectures", "attention", "losses"))
    kernels = [name for op in _IN_MODELS for name in (op, f"{op}_backward")]
    return _digest([of_attention(*kernels), *map(python_code.of_module, modules)])


def of_host_times() -> str:
    """What stands between a public function and its kernels, and how that is timed."""
    modules = ("core.autograd", "core.dispatch", "core.recorded_calls", "measure.host_times")
    return _digest(python_code.of_module(f"warpsmith.{module}") for module in modules)


def of_self_tests() -> str:
    """What a run of the self tests speaks for."""
    return csrc.source_hash("selftest")


def names() -> tuple[str, ...]:
    """What is verified: every operator, and the self tests."""
    return (*catalogue.load(), "selftest")
