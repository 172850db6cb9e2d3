"""Moving data: rotary positions, tables, indices."""

from warpsmith.transform.rope import rope

__all__ = ["rope"]
