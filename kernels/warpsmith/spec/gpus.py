"""What conditions of rungs ask of the GPU that a call is for; `sm` None stands for any."""

from __future__ import annotations


def has_little_shared_memory(sm: int | None) -> bool:
    """Whether a block has no more than 99 KB; csrc/tile/shared_limits.h."""
    return sm is not None and (sm in (86, 89) or sm >= 120)


def needs_much_shared_memory(sm: int | None) -> str | None:
    if has_little_shared_memory(sm):
        return "needs more than 99 KB of shared memory in a block"
    return None
