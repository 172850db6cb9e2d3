"""Non-maximum suppression in Triton: box after box in one program."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Boxes that are compared with a kept one at a time.
BLOCK = 256


@triton.jit
def nms_kernel(
    box_ptr,  # [n, 4], in order
    label_ptr,  # [n], in order
    alive_ptr,  # [n] int32
    rank_ptr,  # [n]: what is kept, then -1
    count_ptr,  # [1]
    n,
    threshold,
    BLOCK: tl.constexpr,
):
    count = tl.zeros([], dtype=tl.int64)
    for i in range(n):
        if tl.load(alive_ptr + i) != 0:
            tl.store(rank_ptr + count, count * 0 + i)
            count += 1
            x1, y1 = tl.load(box_ptr + 4 * i), tl.load(box_ptr + 4 * i + 1)
            x2, y2 = tl.load(box_ptr + 4 * i + 2), tl.load(box_ptr + 4 * i + 3)
            label = tl.load(label_ptr + i)
            own = (x2 - x1) * (y2 - y1)
            for first in range(i + 1, n, BLOCK):
                j = first + tl.arange(0, BLOCK)
                there = j < n
                a1 = tl.load(box_ptr + 4 * j, mask=there, other=0.0)
                b1 = tl.load(box_ptr + 4 * j + 1, mask=there, other=0.0)
                a2 = tl.load(box_ptr + 4 * j + 2, mask=there, other=0.0)
                b2 = tl.load(box_ptr + 4 * j + 3, mask=there, other=0.0)
                left, right = tl.where(a1 > x1, a1, x1), tl.where(a2 < x2, a2, x2)
                top, bottom = tl.where(b1 > y1, b1, y1), tl.where(b2 < y2, b2, y2)
                width = tl.where(right - left < 0.0, 0.0, right - left)
                height = tl.where(bottom - top < 0.0, 0.0, bottom - top)
                shared = width * height
                united = own + (a2 - a1) * (b2 - b1) - shared
                same = tl.load(label_ptr + j, mask=there, other=0) == label
                gone = there & same & (shared / united > threshold)
                tl.store(alive_ptr + j, tl.zeros([BLOCK], dtype=tl.int32), mask=gone)
            tl.debug_barrier()
    tl.store(count_ptr, count)


def nms_ordered(
    boxes: Tensor, order: Tensor, iou_threshold: float, classes: Tensor | None
) -> tuple[Tensor, Tensor]:
    n = boxes.shape[0]
    count = order.new_zeros(1)
    if n == 0:
        return order.new_empty(0), count
    known = (order >= 0) & (order < n)
    places = torch.where(known, order, 0)
    ranked = boxes[places].float().contiguous()
    labels = torch.zeros_like(order) if classes is None else classes[places]
    ranks = torch.full_like(order, -1)
    alive = known.int()
    with torch.cuda.device(boxes.device if boxes.device.type == "cuda" else -1):
        nms_kernel[(1,)](ranked, labels, alive, ranks, count, n, iou_threshold, BLOCK, num_warps=8)
    return torch.where(ranks >= 0, order[ranks.clamp(min=0)], -1), count
