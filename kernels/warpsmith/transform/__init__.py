"""Moving data: rotary positions, tables, indices."""

from warpsmith.transform.qk_norm_rope import qk_norm_rope
from warpsmith.transform.rope import rope

__all__ = ["qk_norm_rope", "rope"]
