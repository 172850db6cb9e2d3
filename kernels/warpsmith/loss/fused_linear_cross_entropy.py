"""A linear layer and the cross-entropy of its outputs, which holds the logits of a chunk of rows at
a time: by default of all rows up to 128, and never of all where there are more.

The rows of x go through in chunks: logits = x W^T by a matrix product, then loss and
gradient in one pass of `cross_entropy_with_grad_`, over the logits themselves, then dx = g W and
dW += g^T x. Nothing of a chunk outlives it but its share of the gradients, which are thus there
before the backward pass begins; it only scales them.

It is a composite: it has no ladder, as what it does beside matrix products is done by
`cross_entropy_with_grad`, whose ladder stands in for one (by `cross_entropy_forward`, where nothing
needs a gradient). The products are this library's on sm_90, where it has wgmma, and PyTorch's
elsewhere; and so is, everywhere, dW that is summed in 16 bits: `accumulate_matmul` adds in f32, and
an `addmm` over its own c would need room for a second dW. What is its own is the order of the
steps, and the size of a chunk.

The idea: Hsu et al. 2024, Liger Kernel, https://arxiv.org/abs/2410.10989.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, sharded
from warpsmith.core.catalogue import Composite, Needs, PartCall
from warpsmith.core.catalogue import Gradients as Found
from warpsmith.loss.checks import check_per_row, check_reduction, check_target, wide_dtype

_OP = "fused_linear_cross_entropy"
#: Logits of a chunk take about this many bytes. Every chunk reads and writes the whole gradient of
#: the weight, beside which the arithmetic of 2048 rows is long.
CHUNK_BYTES = 512 << 20
#: Chunks of fewer rows keep the matrix products from their full speed.
LEAST_ROWS = 1024
#: However few bytes they take, the logits are cut into so many chunks, of `LEAST_ROWS` at least ...
CHUNKS = 4
#: ... and into so many where there are fewer rows than that, but more than a tile: of those all are
#: never held, while a tile of rows, or less, is a single chunk.
LEAST_CHUNKS = 2
#: Rows of matrix products come in tiles of this many.
ROW_TILE = 128
#: Logits of a chunk are laid out with rows of a multiple of this many bytes: matrix products are
#: several times slower on rows that start anywhere, as those of 50257 classes would.
ROW_BYTES = 128
#: Matrix products along rows of which a piece of so many bytes is cut off run on kernels several
#: times slower. So the classes that do not fill the last piece go through products of their own.
PIECE_BYTES = 16


# --- checks ---------------------------------------------------------------------------------------


def _check_like(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise RuntimeError(
            f"{_OP}: expected {name} to be on {x.device} like x, got {tensor.device}"
        )
    if tensor.dtype != x.dtype and not (tensor.dtype == torch.float32 and x.element_size() < 4):
        raise RuntimeError(
            f"{_OP}: expected {name} to have dtype {x.dtype} like x, got {tensor.dtype}"
        )


def check(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    chunk_rows: int | None,
    row_weight: Tensor | None = None,
) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{_OP}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dim() != 2:
        raise RuntimeError(f"{_OP}: expected x to have 2 dimensions, got shape {tuple(x.shape)}")
    _check_like("weight", weight, x)
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise RuntimeError(
            f"{_OP}: expected weight to have shape (v, {x.shape[1]}), got {tuple(weight.shape)}"
        )
    if weight.shape[0] == 0:
        raise RuntimeError(
            f"{_OP}: expected weight to have at least 1 class, got shape {tuple(weight.shape)}"
        )
    check_target(_OP, target, "x", x)
    if bias is not None:
        _check_like("bias", bias, x)
        if bias.shape != weight.shape[:1]:
            raise RuntimeError(
                f"{_OP}: expected bias to have shape ({weight.shape[0]},), the classes of weight, "
                f"got {tuple(bias.shape)}"
            )
    if row_weight is not None:
        check_per_row(_OP, "the weight of tokens", row_weight, x)
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"{_OP}: expected chunk_rows to be at least 1, got {chunk_rows}")


def as_rows(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, d] and the class of each, of any leading dimensions."""
    if x.dim() in (0, 2):
        return x, target
    if target.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{_OP}: expected target to have shape {tuple(x.shape[:-1])}, one class per row of x, "
            f"got {tuple(target.shape)}"
        )
    return (x[None] if x.dim() == 1 else x.flatten(0, -2)), target.reshape(-1)


# --- chunks ---------------------------------------------------------------------------------------


def default_chunk(rows: int, row_bytes: int) -> int:
    """Rows of a chunk: as many as `CHUNK_BYTES` hold, spread evenly over several chunks."""
    most = max(CHUNK_BYTES // row_bytes // ROW_TILE * ROW_TILE, LEAST_ROWS)
    fewest = min(max(rows // LEAST_ROWS, LEAST_CHUNKS), CHUNKS) if rows > ROW_TILE else 1
    chunks = max(-(-rows // most), fewest)
    return max(-(-rows // chunks // ROW_TILE), 1) * ROW_TILE


def _padded(count: int, x: Tensor) -> int:
    """Values from one row of logits to the next."""
    width = ROW_BYTES // x.element_size()
    return -(-count // width) * width


def bytes_of_row(count: int, x: Tensor, softcap: float | None) -> int:
    """Of a row of logits, which lies there in f32, too, where it is capped."""
    size = x.element_size()
    return _padded(count, x) * (max(size, 4) if softcap else size)


def pieces(rows: int, chunk: int) -> Iterator[slice]:
    for start in range(0, rows, chunk):
        yield slice(start, min(start + chunk, rows))


def rows_of(x: Tensor, part: slice) -> Tensor:
    """Rows of a tensor: itself where these are all that it has, which costs the host no view."""
    return x if part.start == 0 and part.stop == x.shape[0] else x[part]


def _class_blocks(count: int, x: Tensor) -> tuple[slice, ...]:
    """The classes in whole pieces of a row of logits, and what is left of them."""
    whole = count - count % (PIECE_BYTES // x.element_size())
    return tuple(slice(a, b) for a, b in ((0, whole), (whole, count)) if a < b)


def _add_product(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """out += a b, or out = a b at first; 16-bit factors may meet in f32."""
    if out.dtype == a.dtype:
        if first:
            torch.mm(a, b, out=out)
        else:
            torch.addmm(out, a, b, out=out)
    elif a.is_cuda:
        if first:
            torch.mm(a, b, out_dtype=out.dtype, out=out)
        else:
            torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        _add_product(out, a.to(out.dtype), b.to(out.dtype), first=first)


def _input_gradient(dx: Tensor, grad: Tensor, weight: Tensor, blocks: tuple[slice, ...]) -> None:
    """dx = g W, summed in f32 and rounded once: cuBLAS may cut a long sum, and round its parts to
    the dtype of the result before it adds them.
    """
    wide = wide_dtype(dx)
    total = dx if dx.dtype == wide else torch.empty_like(dx, dtype=wide)
    for classes in blocks:
        columns = grad if len(blocks) == 1 else grad[:, classes]
        _add_product(total, columns, rows_of(weight, classes), first=classes.start == 0)
    if total is not dx:
        dx.copy_(total)


@functools.cache
def _is_proven(op: str, rung: str) -> bool:
    """Whether a GPU has verified a rung."""
    return any(r.name == rung and not r.unproven for r in catalogue.get(op).ladder)


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def _has_tiles(x: Tensor, weight: Tensor) -> bool:
    """Whether this library's products take the place of PyTorch's: by wgmma, of rows that are whole
    packs of 16 bytes.
    """
    packs = x.shape[1] % 8 == 0 and weight.shape[0] % 8 == 0
    if not (x.is_cuda and x.dtype.itemsize == 2 and packs):
        return False
    return _is_hopper(x.device) and _is_proven("matmul", "wgmma_peak")


class _WeightGradient:
    """The sum over chunks of g^T x, in the dtype of the weight or in f32; `tiles`: by products of
    this library, where it adds to sums that are there.
    """

    def __init__(self, weight: Tensor, in_f32: bool, tiles: bool) -> None:
        dtype = wide_dtype(weight) if in_f32 else weight.dtype
        self.sum = torch.empty(weight.shape, dtype=dtype, device=weight.device)
        self.empty = True
        self.tiles = tiles and dtype != weight.dtype and _is_proven("accumulate_matmul", "wgmma")

    def add(self, grad: Tensor, x: Tensor, blocks: tuple[slice, ...]) -> None:
        if self.tiles:
            if self.empty:
                self.sum.zero_()
            torch.ops.warpsmith.accumulate_matmul(grad.t(), x, self.sum)
            self.empty = False
            return
        turned = grad.t()
        for classes in blocks:
            _add_product(rows_of(self.sum, classes), rows_of(turned, classes), x, first=self.empty)
        self.empty = False

    def total(self, dtype: torch.dtype) -> Tensor:
        return self.sum.zero_().to(dtype) if self.empty else self.sum.to(dtype)


class Logits:
    """Those of chunks of rows, one chunk after the other in one buffer; where they are capped, in
    another one in f32.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunk_rows: int | None,
        softcap: float,
    ) -> None:
        rows, self.count = x.shape[0], weight.shape[0]
        chunk = chunk_rows or default_chunk(rows, bytes_of_row(self.count, x, softcap))
        self.x, self.softcap = x, softcap
        self.weight = weight.to(x.dtype)
        self.tiles = _has_tiles(x, self.weight)
        self.buffer = self.capped = x.new_empty(0)
        if not self.tiles:
            self.buffer = x.new_empty(min(chunk, rows), _padded(self.count, x))
            # oneDNN reads past the end of a row of bf16, and multiplies by zero
            self.buffer[:, self.count :].zero_()
        self.bias = None if bias is None else bias.to(x.dtype)
        self.blocks = _class_blocks(self.count, x)
        self.parts = tuple(pieces(rows, chunk))
        self.product: Tensor | None = None
        if softcap:
            wide = x.new_empty(0, dtype=wide_dtype(x))
            self.capped = wide.new_empty(min(chunk, rows), _padded(self.count, wide))

    def of(self, part: slice, differentiated: bool) -> Tensor:
        """The logits of a chunk, which those of the next take the place of."""
        if self.tiles:
            logits = torch.ops.warpsmith.linear(rows_of(self.x, part), self.weight, self.bias)
        else:
            logits = self.buffer[: part.stop - part.start, : self.count]
            self._multiply(logits, rows_of(self.x, part))
        if not self.softcap:
            return logits
        self.product = logits if differentiated else None
        capped = self.capped[: logits.shape[0], : self.count]
        return capped.copy_(logits).div_(self.softcap).tanh_().mul_(self.softcap)

    def _multiply(self, logits: Tensor, rows: Tensor) -> None:
        for classes in self.blocks:
            weight = self.weight[classes].t()
            if self.bias is None:
                torch.mm(rows, weight, out=logits[:, classes])
            else:
                torch.addmm(self.bias[classes], rows, weight, out=logits[:, classes])

    def before_the_cap(self, grad: Tensor) -> Tensor:
        """The gradient of the product, over that of the logits or over the product itself."""
        if self.product is None:
            return grad
        slope = self.product.to(grad.dtype).div_(self.softcap).tanh_().square_().neg_().add_(1.0)
        return self.product.copy_(grad.mul_(slope))


class Gradients:
    """Those of x, weight and bias, of which each chunk has its share; empty where not asked for."""

    def __init__(
        self,
        logits: Logits,
        weight: Tensor,
        bias: Tensor | None,
        accumulate_f32: bool,
        wanted: tuple[bool, bool, bool],
    ) -> None:
        x, of_x, of_weight, of_bias = logits.x, *wanted
        self.logits, self.any = logits, any(wanted)
        #: Whether a product of this library is all of x's gradient.
        self.at_once = of_x and logits.tiles and len(logits.parts) == 1
        shape = x.shape if of_x and not self.at_once else (0,)
        self.x = torch.empty(shape, dtype=x.dtype, device=x.device)
        in_f32 = accumulate_f32 or weight.dtype != x.dtype
        self.of_weight = None
        if of_weight:
            self.of_weight = _WeightGradient(logits.weight, in_f32, logits.tiles)
        self.like_weight, self.like_bias = weight, x if bias is None else bias
        self.of_bias = self.like_bias.new_empty(0)
        if of_bias:
            self.of_bias = torch.zeros(logits.count, dtype=wide_dtype(x), device=x.device)

    def add(self, part: slice, grad: Tensor) -> None:
        """`grad` is that of the logits of the chunk, over which it lies."""
        grad = self.logits.before_the_cap(grad)
        blocks = self.logits.blocks
        if self.at_once:
            self.x = torch.ops.warpsmith.matmul(grad, self.logits.weight)
        elif self.x.numel() and self.logits.tiles:
            self.x[part] = torch.ops.warpsmith.matmul(grad, self.logits.weight)
        elif self.x.numel():
            _input_gradient(rows_of(self.x, part), grad, self.logits.weight, blocks)
        if self.of_weight is not None:
            self.of_weight.add(grad, rows_of(self.logits.x, part), blocks)
        if self.of_bias.numel():
            self.of_bias += grad.sum(0, dtype=self.of_bias.dtype)

    def total(self) -> tuple[Tensor, Tensor, Tensor]:
        del self.logits  # before the gradient of the weight changes its dtype
        dtype = self.like_weight.dtype
        none = self.like_weight.new_empty(0)
        dweight = none if self.of_weight is None else self.of_weight.total(dtype)
        return self.x, dweight, self.of_bias.to(self.like_bias.dtype)


@torch.no_grad()
def _forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    mean: bool,
    chunk_rows: int | None,
    accumulate_f32: bool,
    grad_x: bool,
    grad_weight: bool,
    grad_bias: bool,
    row_weight: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, the gradients of the *sum* of the losses (empty where not asked for), and what takes
    them to those of the loss. That comes last, in f32, because in f16 the gradient of a mean over
    thousands of rows would be lost before it reached a matrix product.
    """
    check(x, weight, target, bias, chunk_rows, row_weight)
    options = (ignore_index, label_smoothing, z_loss)
    of_chunks: list[Tensor] = []
    logits = Logits(x, weight, bias, chunk_rows, softcap)
    wanted = (grad_x, grad_weight, grad_bias)
    gradients = Gradients(logits, weight, bias, accumulate_f32, wanted)
    for part in logits.parts:
        chunk, classes = logits.of(part, gradients.any), rows_of(target, part)
        if gradients.any:
            factor = None if row_weight is None else rows_of(row_weight, part)
            run = torch.ops.warpsmith.cross_entropy_with_grad_
            of_chunks.append(run(chunk, classes, factor, *options)[0])
            gradients.add(part, chunk)
        else:
            run = torch.ops.warpsmith.cross_entropy_forward
            of_chunks.append(run(chunk, classes, *options)[0])
        del chunk
    del logits
    if len(of_chunks) == 1:
        losses = of_chunks[0]
    else:
        losses = torch.cat((x.new_empty(0, dtype=wide_dtype(x)), *of_chunks))
    valid = target != ignore_index
    if row_weight is not None:
        losses = torch.where(valid, losses * row_weight, 0.0)
    loss = losses.sum()
    if not mean:
        return loss, *gradients.total(), torch.ones_like(loss)
    valid = valid if row_weight is None else torch.where(valid, row_weight, 0.0)
    count = valid.sum()
    loss = loss / count
    if not gradients.any:
        scale = torch.ones_like(loss)
    elif row_weight is None:  # a number of rows: only 0 has no reciprocal
        scale = count.to(loss.dtype).reciprocal_().nan_to_num_(posinf=0.0)
    else:
        scale = torch.where(count > 0, count.reciprocal(), 0.0)
    return loss, *gradients.total(), scale


def _fake(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    mean: bool,
    chunk_rows: int | None,
    accumulate_f32: bool,
    grad_x: bool,
    grad_weight: bool,
    grad_bias: bool,
    row_weight: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check(x, weight, target, bias, chunk_rows, row_weight)
    loss = x.new_empty((), dtype=wide_dtype(x))
    return (
        loss,
        x.new_empty(x.shape if grad_x else (0,)),
        weight.new_empty(weight.shape if grad_weight else (0,)),
        (x if bias is None else bias).new_empty(weight.shape[0] if grad_bias else 0),
        torch.empty_like(loss),
    )


# --- gradients ------------------------------------------------------------------------------------


def _may_overwrite(saved: Tensor) -> bool:
    """Whether nobody looks at a saved tensor again: the graph is neither traced nor retained for
    another backward.
    """
    if torch.compiler.is_compiling() or type(saved) is not Tensor:
        return False
    graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return graph_is_kept is not None and not graph_is_kept()


def _derivative(
    grad_loss: Tensor | None,
    grad_dx: Tensor | None,
    grad_dweight: Tensor | None,
    grad_dbias: Tensor | None,
    dx: Tensor,
    dweight: Tensor,
    dbias: Tensor,
    scale: Tensor,
    needs: Needs,
) -> Found:
    """Scales the gradients that the operator returns, where they lie if it may. They are outputs
    that only a second derivative has gradients of.
    """
    if not grad_dx is grad_dweight is grad_dbias is None:
        raise RuntimeError(f"{_OP}: second derivatives are not implemented")
    if grad_loss is None:
        return {}
    factor = (grad_loss * scale).reshape(1)  # a tensor of f32, so that the products are, too
    if torch.is_grad_enabled():
        made = {"x": dx, "weight": dweight, "bias": dbias}
        return {name: (made[name] * factor).to(made[name].dtype) for name in needs}
    found: dict[str, Tensor] = {}
    for name, kept in (("x", dx), ("weight", dweight), ("bias", dbias)):
        if name in needs:
            g = kept.detach()
            found[name] = torch.mul(g, factor, out=g if _may_overwrite(g) else torch.empty_like(g))
    return found


_fused = dispatch.register_composite(
    f"{_OP}(Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, "
    "float label_smoothing, float z_loss, bool mean, int? chunk_rows, bool accumulate_f32, "
    "bool grad_x, bool grad_weight, bool grad_bias, Tensor? row_weight=None, float softcap=0.0) -> "
    "(Tensor loss, Tensor dx, Tensor dweight, Tensor dbias, Tensor scale)",
    _forward,
    _fake,
    _derivative,
)


def _calls(
    x: Tensor,
    weight: Tensor,
    target: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    softcap: float | None = None,
    chunk_rows: int | None = None,
    accumulate_f32: bool = False,
) -> tuple[PartCall, ...]:
    """What the first chunk of a call comes to, with gradients and without."""
    check_reduction(_OP, reduction)
    target = x.new_empty(x.shape[:-1], dtype=torch.int64) if target is None else target
    x, target = as_rows(x, target)
    check(x, weight, target, bias, chunk_rows)
    rows, count = x.shape[0], weight.shape[0]
    chunk = min(chunk_rows or default_chunk(rows, bytes_of_row(count, x, softcap)), rows)
    read = x.new_empty(0, dtype=wide_dtype(x) if softcap else x.dtype)
    logits = read.new_empty((chunk, _padded(count, read)))[:, :count]
    chunks = -(-rows // chunk) if chunk else 0
    where = f"{chunks} chunk{'' if chunks == 1 else 's'} of {chunk} x {count} logits"
    return (
        PartCall("cross_entropy_with_grad", (logits, target[:chunk]), f"{where}, with gradients"),
        PartCall("cross_entropy_forward", (logits, target[:chunk]), "without"),
    )


composite = catalogue.add_composite(
    Composite(
        f"{_OP}(Tensor x, Tensor weight, Tensor target, Tensor? bias=None, *, "
        "int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, "
        'str reduction="mean", Tensor? class_weight=None, Tensor? token_weight=None, '
        "float? softcap=None, int? chunk_rows=None, bool accumulate_f32=False) -> Tensor",
        family="loss",
        parts=(
            ("torch.mm", "the logits of a chunk: x W^T, or torch.addmm with a bias"),
            ("cross_entropy_with_grad", "loss and gradient of a chunk, over its logits"),
            ("cross_entropy_forward", "the loss alone, where nothing needs a gradient"),
            ("torch.mm", "dx of a chunk, and its share of dW, added by torch.addmm"),
        ),
        calls=_calls,
        module=__name__,
    )
)


# --- the public function --------------------------------------------------------------------------


def fused_linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    softcap: float | None = None,
    chunk_rows: int | None = None,
    accumulate_f32: bool = False,
) -> Tensor:
    """``cross_entropy(x @ weight.T + bias, target)``, of whose logits a chunk is held at a time.

    Rows go through in chunks, whose logits turn into their gradients in place. By default 128 rows
    or fewer are one chunk, which holds all the logits, and more rows are several. Gradients are
    there after the forward pass; the backward pass scales them, where they lie unless the graph is
    retained, and asks the host for nothing. The logits of a vocabulary of 128256 in bf16 take 2 GiB
    at 8192 rows; a chunk takes a quarter of that.

    It has no ladder and no variants of its own: beside matrix products it runs
    `cross_entropy_with_grad`, whose ladder stands in for one. `warpsmith which` says which of its
    kernels serves the chunks of a call. On sm_90, in 16 bits, this library makes the products, but
    for the gradient of a weight of 16 bits: kernels here add to sums in f32 alone, as with
    `accumulate_f32`, and PyTorch's in place to any. Elsewhere all of them are PyTorch's.

    Args:
        x: [..., d], f32, f16 or bf16 (f64 without a kernel of its own). Under autocast it is cast.
        weight: [v, d], in the dtype of x, or f32: cast for the products, its gradient summed and
            returned in f32.
        target: [...], the index of a class, int64 or int32, as in `cross_entropy`.
        bias: [v], in the dtype of x or f32, or None.
        ignore_index: rows of this target have loss and gradient 0.
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of lse^2.
        reduction: "mean" over the rows that are not ignored (NaN where all are), "sum", or "none"
            for a loss per row, whose backward pass computes the logits again.
        class_weight: [v], what the losses of a class's rows are multiplied by, or None. A mean then
            divides by the sum of what its rows are multiplied by. Not together with smoothing.
        token_weight: [...] like target, what each row's loss is multiplied by, or None; likewise.
            Both multiply the z-loss, too, and are constants.
        softcap: the logits, as the product has rounded them to the dtype of x, are capped as
            ``softcap * tanh(logits / softcap)`` in f32, whose gradient is rounded to that dtype in
            its turn; None for not. Beside the logits of a chunk that takes two tensors of their
            size in f32.
        chunk_rows: rows of a chunk; by default as many as 512 MiB of logits hold (of those in f32,
            with a softcap), but at most a quarter of the rows where that leaves 1024, and half of
            them where there are more than 128, rounded up to a multiple of 128.
        accumulate_f32: whether the gradient of the weight is summed over chunks in f32 instead of
            the dtype of the weight, which needs memory for it.

    Returns:
        A scalar in f32 (f64 for f64 inputs), or the shape of target, differentiable in x, weight
        and bias.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; a weight of classes or tokens requires a
            gradient.
        ValueError: the reduction does not exist; chunk_rows is less than 1; softcap is not above 0;
            class weights come with smoothing.

    Reference:
        `torch.nn.functional.linear` and `torch.nn.functional.cross_entropy`.
    """
    check_reduction(_OP, reduction)
    if softcap is not None and not softcap > 0.0:
        raise ValueError(f"{_OP}: expected softcap to be above 0 or None, got {softcap}")
    if rules := sharded.of(x, weight):
        from warpsmith.loss import fused_linear_sharded  # which is made of this function

        return fused_linear_sharded.run(
            rules,
            {"x": x, "weight": weight, "target": target, "bias": bias}
            | {"class_weight": class_weight, "token_weight": token_weight},
            reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            softcap=softcap,
            chunk_rows=chunk_rows,
            accumulate_f32=accumulate_f32,
        )
    shape = target.shape if isinstance(target, Tensor) else None
    if isinstance(x, Tensor) and shape is not None:
        x, target = as_rows(x, target)
    row_weight = None
    if class_weight is not None or token_weight is not None:
        row_weight = weights_of_rows(
            x, weight, target, class_weight, token_weight, ignore_index, label_smoothing
        )
    if reduction == "none":
        from warpsmith.loss.fused_linear_rows import rows  # which is made of this module

        options = (ignore_index, label_smoothing, z_loss, softcap or 0.0, chunk_rows)
        loss: Tensor = rows(x, weight, target, bias, *options, accumulate_f32)[0]
        if row_weight is not None:
            loss = torch.where(target == ignore_index, 0.0, loss * row_weight)
        return loss if shape is None else loss.view(shape)
    needs = [False] * 3
    if torch.is_grad_enabled():
        # what is differentiated within a transform does not say so
        every = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
        needs = [a is not None and (every or a.requires_grad) for a in (x, weight, bias)]
    return _fused(
        x,
        weight,
        target,
        bias,
        ignore_index,
        label_smoothing,
        z_loss,
        reduction == "mean",
        chunk_rows,
        accumulate_f32,
        *needs,
        row_weight,
        softcap or 0.0,
    )[0]


def weights_of_rows(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    token_weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """What the loss of each row is multiplied by: f32, [n]."""
    for name, w in (("class_weight", class_weight), ("token_weight", token_weight)):
        if w is not None and w.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{_OP}: expected {name} that requires no gradient")
    wide = wide_dtype(x)
    found = torch.ones(target.shape, dtype=wide, device=x.device)
    if class_weight is not None:
        if label_smoothing:
            raise ValueError(f"{_OP}: expected no class_weight beside label_smoothing")
        if class_weight.shape != weight.shape[:1]:
            raise RuntimeError(
                f"{_OP}: expected class_weight to have shape ({weight.shape[0]},), the classes of "
                f"weight, got {tuple(class_weight.shape)}"
            )
        place = torch.where(target == ignore_index, 0, target).long()
        found = class_weight.to(wide)[place]
    if token_weight is not None:
        if token_weight.numel() != target.numel():
            raise RuntimeError(
                f"{_OP}: expected token_weight to have the shape of target, "
                f"got {tuple(token_weight.shape)}"
            )
        found = found * token_weight.reshape(-1).to(wide)
    return found.contiguous()
