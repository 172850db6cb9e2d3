"""Non-maximum suppression of boxes, with torchvision's semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import autograd, catalogue, dispatch, messages
from warpsmith.core.catalogue import Bad, Cost, Inputs, Op, Property, Rung, Sample
from warpsmith.spec.checks import check_device, shape_text
from warpsmith.spec.peers import PerInput

MOST_MASKED = 1 << 17


def _check(boxes: Tensor, order: Tensor, classes: Tensor | None) -> None:
    op = "nms_ordered"
    if not boxes.is_floating_point():
        raise RuntimeError(f"{op}: expected boxes to be a floating-point tensor, got {boxes.dtype}")
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise RuntimeError(f"{op}: expected boxes to have shape (n, 4), got {shape_text(boxes)}")
    for name, numbers in (("order", order), ("classes", classes)):
        if numbers is None:
            continue
        check_device(op, name, numbers, boxes, "boxes")
        if numbers.dtype != torch.int64:
            raise RuntimeError(
                f"{op}: expected {name} to have dtype torch.int64, got {numbers.dtype}"
            )
        if tuple(numbers.shape) != (boxes.shape[0],):
            raise RuntimeError(
                f"{op}: expected {name} to have shape ({boxes.shape[0]},), one for each box, "
                f"got {shape_text(numbers)}"
            )


def _overlaps(box: Tensor, others: Tensor, threshold: float) -> Tensor:
    """Which of the others share more than the threshold with a box."""
    corner = torch.maximum(box[:2], others[:, :2])
    sides = (torch.minimum(box[2:], others[:, 2:]) - corner).clamp(min=0)
    shared = sides[:, 0] * sides[:, 1]
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    own = (box[2] - box[0]) * (box[3] - box[1])
    rounded = torch.full(
        (), threshold, dtype=torch.float32, device=box.device
    )  # as kernels hold it
    return shared / (own + areas - shared) > rounded.to(box)


def _reference(
    boxes: Tensor, order: Tensor, iou_threshold: float, classes: Tensor | None
) -> tuple[Tensor, Tensor]:
    n = boxes.shape[0]
    known = (order >= 0) & (order < n)
    places = torch.where(known, order, 0)
    ranked = boxes[places] if n else boxes
    labels = None if classes is None else classes[places]
    alive, kept = known.clone(), []
    for i in range(n):
        if not alive[i]:
            continue
        kept.append(i)
        gone = _overlaps(ranked[i], ranked[i + 1 :], iou_threshold)
        if labels is not None:
            gone &= labels[i + 1 :] == labels[i]
        alive[i + 1 :] &= ~gone
    keep = order.new_full((n,), -1)
    keep[: len(kept)] = order[torch.tensor(kept, dtype=torch.int64, device=order.device)]
    return keep, order.new_full((1,), len(kept))


def _torchvision() -> Callable[..., Any]:
    import torchvision  # type: ignore[import-not-found,import-untyped]

    scores = PerInput(lambda order: -torch.argsort(order).float())

    def run(
        boxes: Tensor, order: Tensor, iou_threshold: float, classes: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if classes is None:
            found = torchvision.ops.nms(boxes, scores(order), iou_threshold)
        else:
            found = torchvision.ops.batched_nms(boxes, scores(order), classes, iou_threshold)
        keep = order.new_full(order.shape, -1)
        keep[: found.shape[0]] = found
        return keep, order.new_full((1,), found.shape[0])

    return run


def _few_boxes(boxes: Tensor) -> str | None:
    return None if boxes.shape[0] <= MOST_MASKED else "needs at most 131072 boxes"


# --- calls ----------------------------------------------------------------------------------------


def _boxes(i: Inputs, n: int, extent: float = 10.0) -> Tensor:
    corners = i.plain(n, 2, salt=1).abs() * extent
    sides = i.plain(n, 2, salt=2).abs() * 3
    return torch.cat((corners, corners + sides), 1)


def _order(i: Inputs, n: int) -> Tensor:
    if torch.device(i.device).type == "meta":
        return torch.empty(n, dtype=torch.int64, device="meta")
    return torch.randperm(n, generator=i.generator((n,)), device=i.device)


def _classes(i: Inputs, n: int) -> Tensor:
    return torch.arange(n, device=i.device) * 7 % 5 - 1


def _random(n: int, threshold: float = 0.5, small: bool = True) -> Sample:
    return Sample(
        f"{n} boxes, {threshold}", lambda i: (_boxes(i, n), _order(i, n), threshold), small=small
    )


def _batched(i: Inputs) -> tuple[Any, ...]:
    return _boxes(i, 200, 3.0), _order(i, 200), 0.3, _classes(i, 200)


def _duplicates(i: Inputs) -> tuple[Any, ...]:
    """Boxes several times, boxes without extent, boxes the wrong way round."""
    boxes = _boxes(i, 40)
    turned = boxes[:10, [2, 3, 0, 1]]
    points = boxes[:10, [0, 1, 0, 1]]
    boxes = torch.cat((boxes, boxes, points, points, turned))
    return boxes, _order(i, boxes.shape[0]), 0.5


def _on_the_threshold(i: Inputs) -> tuple[Any, ...]:
    """Halves, quarters and thirds that overlap by exactly the threshold, or more."""
    rows = [[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 2, 2], [0, 0, 4, 3], [10, 0, 14, 4], [10, 0, 12, 4]]
    boxes = torch.tensor(rows, device=i.device).to(i.dtype)
    return boxes, torch.arange(6, device=i.device), 0.5


def _special(i: Inputs) -> tuple[Any, ...]:
    boxes = _boxes(i, 80, 2.0)
    if not boxes.is_meta:
        boxes[3, 1] = float("nan")
        boxes[10, 2] = float("inf")
        boxes[20] = 0
    return boxes, _order(i, 80), 0.4


def _strange_order(i: Inputs) -> tuple[Any, ...]:
    order = _order(i, 100)
    if not order.is_meta:
        order[[0, 50, 99]] = torch.tensor([100, -1, 1 << 40], device=i.device)
        order[70] = order[71]
    return _boxes(i, 100, 2.0), order, 0.4


SAMPLES = (
    *(_random(n) for n in (1, 2, 63, 64, 65, 200)),
    *(_random(150, threshold) for threshold in (0.0, 0.1, 0.9, 1.0, -1.0)),
    Sample("classes", _batched),
    Sample("duplicates", _duplicates),
    Sample("on the threshold", _on_the_threshold),
    Sample("special values", _special),
    Sample("an order with gaps", _strange_order),
    Sample("strided", lambda i: (_boxes(i, 80)[::2], _order(i, 40), 0.5)),
    Sample("misaligned", lambda i: (i.misaligned(33, 4), _order(i, 33), 0.5)),
    Sample("no boxes", lambda i: (i.randn(0, 4), _order(i, 0), 0.5)),
    _random(3000, small=False),
    _random(9001, 0.2, small=False),
)


def _bad(label: str, message: str, cuda_only: bool = False, **changes: Any) -> Bad:
    def make(i: Inputs) -> dict[str, Any]:
        good = {"boxes": _boxes(i, 8), "order": _order(i, 8), "iou_threshold": 0.5}
        return good | {name: make(i) for name, make in changes.items()}

    return Bad(label, make, f"nms_ordered: {message}", cuda_only=cuda_only)


ERRORS = (
    _bad(
        "integers",
        r"expected boxes to be a floating-point tensor, got torch\.int32",
        boxes=lambda i: torch.ones(8, 4, dtype=torch.int32, device=i.device),
    ),
    _bad(
        "boxes of five numbers",
        r"expected boxes to have shape \(n, 4\), got \(8, 5\)",
        boxes=lambda i: i.randn(8, 5),
    ),
    _bad(
        "order in 32 bits",
        r"expected order to have dtype torch\.int64, got torch\.int32",
        order=lambda i: _order(i, 8).int(),
    ),
    _bad(
        "too short an order",
        r"expected order to have shape \(8,\), one for each box, got \(7,\)",
        order=lambda i: _order(i, 7),
    ),
    _bad(
        "too few classes",
        r"expected classes to have shape \(8,\), one for each box, got \(7,\)",
        classes=lambda i: _order(i, 7),
    ),
    _bad(
        "order on the CPU",
        r"expected order to be on cuda:\d+ like boxes, got cpu",
        cuda_only=True,
        order=lambda i: torch.arange(8),
    ),
)


def _apart(nms: Any, inputs: Inputs) -> None:
    """Boxes that do not meet are all kept; copies of one box leave the first."""
    n = 130
    corner = torch.arange(n, device=inputs.device).to(inputs.dtype)[:, None] * 2
    boxes = torch.cat((corner, corner, corner + 1, corner + 1), 1)
    order = torch.arange(n, device=inputs.device)
    keep, count = nms(boxes, order, 0.0)
    assert int(count) == n
    assert torch.equal(keep, order)
    keep, count = nms(boxes[:1].expand(n, 4), order, 0.9)
    assert int(count) == 1
    assert keep[:2].tolist() == [0, -1]


def _bench(n: int) -> Sample:
    extent = 10.0 * (n / 1024) ** 0.5
    return Sample(f"{n} boxes", lambda i: (_boxes(i, n, extent), _order(i, n), 0.5), small=False)


op = catalogue.add(
    Op(
        "nms_ordered(Tensor boxes, Tensor order, float iou_threshold, Tensor? classes=None)"
        " -> (Tensor keep, Tensor count)",
        family="vision",
        source="nms",
        aliases=("nms",),
        reference=_reference,
        ladder=(
            Rung("naive", "one block, box after box", dtypes=("f32",)),
            Rung(
                "mask",
                "a bit for each pair, then 64 boxes at a time",
                dtypes=("f32",),
                technique="mask",
                when=_few_boxes,
            ),
        ),
        triton="nms_triton:nms_ordered",
        fake=lambda boxes, order: (order.new_empty((boxes.shape[0],)), order.new_empty((1,))),
        check=_check,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(Property("apart and alike", _apart, ("f32",)),),
        cost=Cost(
            bytes=lambda boxes: boxes.shape[0] * (4 * boxes.element_size() + 16) + 8,
            flops=lambda boxes: 7 * boxes.shape[0] * (boxes.shape[0] - 1),
        ),
        peers={"torchvision": _torchvision},
        bench=tuple(map(_bench, (1024, 4096, 16384, 65536))),
        bench_dtypes=("f32",),
    )
)
dispatch.register(op)
_RUN = {called: dispatch.public(op, called) for called in ("nms", "nms_fixed")}


def _ranked(
    called: str,
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    idxs: Tensor | None,
    variant: str | None,
) -> tuple[Tensor, Tensor]:
    """By the operator, which knows the order of scores and calls idxs classes."""
    messages.expect_tensors(called, boxes=boxes, scores=scores)
    if idxs is not None and (
        not isinstance(idxs, Tensor) or idxs.is_floating_point() or idxs.is_complex()
    ):
        kind = idxs.dtype if isinstance(idxs, Tensor) else type(idxs).__name__
        raise RuntimeError(f"{called}: expected idxs to be a tensor of integers, got {kind}")
    for name, x in (("scores", scores), ("idxs", idxs)):
        if x is None or boxes.dim() != 2:  # which the operator says
            continue
        check_device(called, name, x, boxes, "boxes")
        if x.shape != boxes.shape[:1]:
            raise RuntimeError(
                f"{called}: expected {name} to have shape ({boxes.shape[0]},), one for each box, "
                f"got {shape_text(x)}"
            )
    order = torch.sort(scores.flatten(), descending=True, stable=True).indices
    classes = None if idxs is None else idxs.long()
    return _RUN[called](variant, boxes, order, iou_threshold, classes)  # type: ignore[no-any-return]


def nms_fixed(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    idxs: Tensor | None = None,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`nms` with a result whose size does not depend on values: without a synchronisation, so that
    a CUDA graph can hold it.

    Args:
        boxes: see `nms`.
        scores: see `nms`.
        iou_threshold: see `nms`.
        idxs: see `nms`.
        variant: one rung by name instead of the best one, "f32_mask".

    Returns:
        int64 indices of shape [n], those that are kept and then -1; and how many these are, int64
        of shape [1].

    Raises:
        RuntimeError: as `nms`.
    """
    return _ranked("nms_fixed", boxes, scores, iou_threshold, idxs, variant)


@autograd.outside_vmap("as the host waits for the number of boxes; nms_fixed works")
def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    idxs: Tensor | None = None,
    *,
    variant: str | None = None,
) -> Tensor:
    """Of overlapping boxes, keeps those with the highest scores.

    In the order of scores, of equal ones the first: a box is kept unless its intersection with a
    kept one of its class, over their union, is more than the threshold. Synchronises once, for the
    size of the result.

    Args:
        boxes: [n, 4], x1, y1, x2, y2 with x1 <= x2 and y1 <= y2; float32 (others without a kernel
            of their own).
        scores: [n].
        iou_threshold: how much of their union two boxes may share.
        idxs: [n], the class of each box, integers; without it, all are of one class.
        variant: one rung by name instead of the best one, "f32_mask".

    Returns:
        The indices of kept boxes, int64, by descending score.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the variant cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        `torchvision.ops.nms`, `torchvision.ops.batched_nms`.
    """
    keep, count = _ranked("nms", boxes, scores, iou_threshold, idxs, variant)
    kept = count.item()
    if torch.compiler.is_compiling():  # to which it is a number that nobody knows yet
        torch._check(kept >= 0)
        torch._check(kept <= keep.shape[0])
        return keep.narrow(0, 0, kept)  # type: ignore[arg-type]
    return keep[:kept]  # type: ignore[misc]
