"""Caches of keys and values: checks, and where the tokens of a sequence lie; mirrors
csrc/attention/cache_operands.h.

A cache is paged, [pages, tokens of a page, heads, d], with a table that says which pages a sequence
has, in order. A cache without a table, [batch, capacity, heads, d], is a page for each sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.checks import check_device, shape_text, wide_dtype

E4M3 = torch.float8_e4m3fn
#: The largest finite value of e4m3, to which what is stored is clamped.
E4M3_MAX = 448.0
_MOST = 2**30


def check_heads(op: str, name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise RuntimeError(
            f"{op}: expected {name} to have shape [batch, tokens, heads, d], got {shape_text(x)}"
        )


def check_wide_floating(op: str, name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected {name} to be a floating-point tensor, got {x.dtype}")
    if x.element_size() < 2:
        raise RuntimeError(
            f"{op}: expected {name} to have at least 16 bits an element, got {x.dtype}"
        )


def check_dtype(op: str, name: str, x: Tensor, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise RuntimeError(f"{op}: expected {name} to have dtype {dtype}, got {x.dtype}")


def check_shape(op: str, name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise RuntimeError(f"{op}: expected {name} to have shape {shape}, got {shape_text(x)}")


def check_caches(op: str, k_cache: Tensor, v_cache: Tensor, x: Tensor, like: str) -> None:
    """Both beside `x`, which messages call `like`."""
    check_device(op, "k_cache", k_cache, x, like)
    if k_cache.dtype not in (x.dtype, E4M3):
        raise RuntimeError(
            f"{op}: expected k_cache to have dtype {x.dtype} like {like}, or {E4M3}, got "
            f"{k_cache.dtype}"
        )
    if k_cache.dim() != 4 or k_cache.shape[1] == 0:
        raise RuntimeError(
            f"{op}: expected k_cache to have shape [pages, tokens of a page, heads, d], got "
            f"{shape_text(k_cache)}"
        )
    check_device(op, "v_cache", v_cache, x, like)
    if v_cache.dtype != k_cache.dtype:
        raise RuntimeError(
            f"{op}: expected v_cache to have dtype {k_cache.dtype} like k_cache, got "
            f"{v_cache.dtype}"
        )
    if v_cache.dim() != 4 or v_cache.shape[:3] != k_cache.shape[:3]:
        raise RuntimeError(
            f"{op}: expected v_cache to have the pages, tokens and heads of k_cache, "
            f"{shape_text(k_cache)}, got {shape_text(v_cache)}"
        )


def check_scales(
    op: str, k_scale: Tensor | None, v_scale: Tensor | None, k_cache: Tensor, x: Tensor, like: str
) -> None:
    """A cache in e4m3 has both, another has none."""
    scaled = k_cache.dtype == E4M3
    if (k_scale is not None) != scaled or (v_scale is not None) != scaled:
        raise RuntimeError(
            f"{op}: expected k_scale and v_scale beside caches in e4m3"
            if scaled
            else f"{op}: expected no k_scale or v_scale beside caches that are not in e4m3"
        )
    heads = k_cache.shape[2]
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is None:
            continue
        check_device(op, name, scale, x, like)
        check_dtype(op, name, scale, wide_dtype(x.dtype))
        if scale.shape not in ((), (heads,)):
            raise RuntimeError(
                f"{op}: expected {name} to have shape () or ({heads},), one value per head of "
                f"keys, got {shape_text(scale)}"
            )


def check_sequences(
    op: str, lengths: Tensor, table: Tensor | None, k_cache: Tensor, x: Tensor, like: str
) -> None:
    """Tokens of sequences, and the pages that they have."""
    batch = x.shape[0]
    check_device(op, "lengths", lengths, x, like)
    check_dtype(op, "lengths", lengths, torch.int32)
    check_shape(op, "lengths", lengths, (batch,))
    if table is None:
        if k_cache.shape[0] != batch:
            raise RuntimeError(
                f"{op}: expected k_cache to have {batch} pages, one a sequence where there is no "
                f"block_table, got shape {shape_text(k_cache)}"
            )
        return
    check_device(op, "block_table", table, x, like)
    check_dtype(op, "block_table", table, torch.int32)
    if table.dim() != 2 or table.shape[0] != batch:
        raise RuntimeError(
            f"{op}: expected block_table to have shape ({batch}, pages), got {shape_text(table)}"
        )


def needs_countable(k_cache: Tensor, v_cache: Tensor, table: Tensor | None) -> str | None:
    """Why no kernel takes a cache."""
    pages, tokens = k_cache.shape[:2]
    width = 1 if table is None else table.shape[1]
    unit = all(x.shape[3] <= 1 or x.stride(3) == 1 for x in (k_cache, v_cache))
    if unit and max(pages, tokens, width, width * tokens) < _MOST:
        return None
    return "needs caches of less than 2^30 tokens, and heads without gaps"


def places(
    positions: Tensor, table: Tensor | None, k_cache: Tensor, op: str
) -> tuple[Tensor, Tensor]:
    """The page, and the token in it, of positions [batch, n] in sequences.

    Raises:
        IndexError: for a position behind the cache's end, and a page that it does not have.
    """
    pages, tokens = k_cache.shape[:2]
    width = 1 if table is None else table.shape[1]
    if positions.numel() and not (
        0 <= int(positions.min()) <= int(positions.max()) < width * tokens
    ):
        raise IndexError(f"{op}: the cache has no room for the tokens of a sequence")
    at = positions // tokens
    if table is None:
        page = torch.arange(len(positions), device=positions.device)[:, None].expand_as(at)
    else:
        page = table.long().gather(1, at)
    if page.numel() and not (0 <= int(page.min()) <= int(page.max()) < pages):
        raise IndexError(f"{op}: block_table names a page that the cache does not have")
    return page, positions % tokens
