"""What the row-wise normalisations are: source x norm x sink, and their gradients.

    source   x, x + residual ("add"), dropout(x) * row_scale + residual ("dropout_add")
    norm     RMS norm, layer norm
    sink     y, y and the rstd of its rows ("with_rstd"), y in fp8 ("fp8")

`forward` and `backward` make the operators; the functions here serve all of them, each by the
arguments that it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Gradients, Op
from warpsmith.norm import checks, ladders, references
from warpsmith.spec import philox
from warpsmith.spec.checks import check_like, check_rows, wide_dtype
from warpsmith.spec.cost import moved

RMS_EPS, LAYER_EPS = 1e-6, 1e-5

Parameter = Tensor | None

_DROPOUT = "Tensor? row_scale=None, float p=0.0, int seed=0, int offset=0"
#: Operations an element of x: without a source, of a gradient, of one from the output.
_FLOPS = {False: (4, 12, 9), True: (7, 17, 13)}
_SOURCE_FLOPS = {"": (0, 0), "add": (1, 1), "dropout_add": (3, 3)}


@dataclass(frozen=True)
class Norm:
    """One of the operators."""

    layer: bool
    source: str = ""
    sink: str = ""

    @property
    def kind(self) -> str:
        return "layer_norm" if self.layer else "rms_norm"

    @property
    def name(self) -> str:
        return "_".join(part for part in (self.source, self.kind, self.sink) if part)

    @property
    def eps(self) -> float:
        return LAYER_EPS if self.layer else RMS_EPS

    @property
    def affine(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.layer else ("weight",)

    @property
    def arguments(self) -> str:
        fp8, drops = self.sink == "fp8", self.source == "dropout_add"
        return ", ".join(
            [
                "Tensor x",
                *(["Tensor residual" if fp8 else "Tensor? residual"] if self.source else []),
                *(f"Tensor? {name}" + "=None" * (not fp8) for name in self.affine),
                *(["Tensor? scale", "ScalarType dtype"] if fp8 else []),
                *([_DROPOUT] if drops else []),
                f"float eps={'1e-5' if self.layer else '1e-6'}",
                *(["bool zero_centered=False"] if self.source or fp8 else []),
            ]
        )

    def given(self, **values: Any) -> dict[str, Any]:
        """Those of the values that are arguments of the operator."""
        names = re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", self.arguments)
        return {name: values[name] for name in names if name in values}

    @property
    def outputs(self) -> str:
        if self.sink == "fp8":
            return "(Tensor, Tensor)" if self.source else "Tensor"
        if self.source:
            return "(Tensor y, Tensor h)"
        return "(Tensor y, Tensor rstd)" if self.sink else "Tensor"

    @property
    def backward_name(self) -> str:
        suffix = "_from_output" if self.sink else ""
        return Norm(self.layer, self.source).name + "_backward" + suffix

    @property
    def backward_schema(self) -> str:
        affine = [f"Tensor? {name}" for name in self.affine]
        if self.source:
            rows, options = ["Tensor? grad_h", "Tensor h"], ["bool zero_centered"]
            if self.source == "dropout_add":
                affine += [_DROPOUT.replace("=None", "").replace("=0.0", "").replace("=0", "")]
            else:
                options += ["bool separate_x"]
        else:
            rows, options = ["Tensor y" if self.sink else "Tensor x"], []
            affine += ["Tensor rstd"] if self.sink else []
        arguments = ", ".join(["Tensor grad", *rows, *affine, "float eps", *options])
        count = len(self.affine) + (2 if self.source else 1)
        return f"{self.backward_name}({arguments}) -> ({', '.join(['Tensor'] * count)})"

    @property
    def flops(self) -> int:
        extra = 2 * (self.sink == "fp8")
        return _FLOPS[self.layer][0] + _SOURCE_FLOPS[self.source][0] + extra

    @property
    def backward_flops(self) -> int:
        if self.sink:
            return _FLOPS[self.layer][2]
        extra = {"": 0, "add": 1 - self.layer, "dropout_add": 3 - self.layer}[self.source]
        return _FLOPS[self.layer][1] + extra


# --- the functions of a forward operator ----------------------------------------------------------


def _check(norm: Norm) -> Callable[..., None]:
    op = norm.name

    def check(
        x: Tensor,
        weight: Parameter,
        bias: Parameter = None,
        residual: Parameter = None,
        row_scale: Parameter = None,
        p: float = 0.0,
        scale: Parameter = None,
        dtype: torch.dtype = torch.float8_e4m3fn,
    ) -> None:
        check_rows(op, x)
        checks.check_residual(op, residual, x)
        checks.check_parameters(op, weight, bias, x)
        checks.check_row_scale(op, row_scale, x)
        philox.check(op, p)
        checks.check_fp8(op, scale, dtype, x)

    return check


def _reference(norm: Norm) -> Callable[..., Any]:
    def reference(
        x: Tensor,
        weight: Parameter,
        eps: float,
        bias: Parameter = None,
        residual: Parameter = None,
        zero_centered: bool = False,
        row_scale: Parameter = None,
        p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
        scale: Parameter = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        if norm.source == "dropout_add":
            h = references.branch_and_add(x, residual, row_scale, p, seed, offset)
        else:
            h = references.add(x, residual)
        into = x.dtype if dtype is None else references.widest(h)
        y = references.norm(h, weight, bias, eps, zero_centered, norm.layer, into)
        if dtype is not None:
            limit = torch.finfo(dtype).max
            y = y if scale is None else y * scale.reshape(())
            y = y.clamp(-limit, limit).to(dtype)
        if norm.source == "dropout_add" or residual is not None:
            return y, h
        if norm.source == "add":
            return y, references.nothing_like(x)
        return (y, references.rstd(x, eps, norm.layer)) if norm.sink == "with_rstd" else y

    return reference


def _fake(norm: Norm) -> Callable[..., Any]:
    def fake(x: Tensor, residual: Parameter = None, dtype: torch.dtype | None = None) -> Any:
        y = x.new_empty(x.shape, dtype=dtype)
        if norm.source:
            if residual is None:
                return y, x.new_empty(0 if norm.source == "add" else x.shape)
            return y, residual.new_empty(x.shape)
        if norm.sink == "with_rstd":
            return y, x.new_empty(x.shape[:-1], dtype=wide_dtype(x.dtype))
        return y

    return fake


def forward(norm: Norm, **settings: Any) -> Op:
    """Enters the operator into the catalogue and registers it.

    Args:
        norm: which one.
        **settings: of its `Op`: ladder, samples, peers and the like.
    """
    schema, fake = f"{norm.name}({norm.arguments}) -> {norm.outputs}", _fake(norm)
    op = Op(
        schema,
        family="norm",
        reference=_reference(norm),
        triton=f"norms_triton:{norm.name}",
        fake=fake,
        check=_check(norm),
        accumulates=True,
        cost=Cost(moved(schema, fake, ("scale",)), lambda x: norm.flops * x.numel()),
        **settings,
    )
    dispatch.register(catalogue.add(op))
    return op


# --- the functions of a gradient ------------------------------------------------------------------


def _check_backward(norm: Norm) -> Callable[..., None]:
    op = norm.backward_name

    def of_rows(grad: Tensor, rows: Tensor, name: str, weight: Parameter, bias: Parameter) -> None:
        check_rows(op, rows, name)
        check_like(op, "grad", grad, rows, name)
        checks.check_parameters(op, weight, bias, rows, name)

    def of_input(grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter = None) -> None:
        of_rows(grad, x, "x", weight, bias)

    def of_output(
        grad: Tensor, y: Tensor, weight: Parameter, rstd: Tensor, bias: Parameter = None
    ) -> None:
        of_rows(grad, y, "y", weight, bias)
        checks.check_rstd(op, rstd, y, "y")

    def of_sum(
        grad: Tensor,
        grad_h: Parameter,
        h: Tensor,
        weight: Parameter,
        bias: Parameter = None,
        row_scale: Parameter = None,
        p: float = 0.0,
    ) -> None:
        checks.check_residual_gradients(op, grad, grad_h, h)
        checks.check_parameters(op, weight, bias, grad)
        checks.check_row_scale(op, row_scale, grad)
        philox.check(op, p)

    if norm.source:
        return of_sum
    return of_output if norm.sink else of_input


def _reference_backward(norm: Norm) -> Callable[..., tuple[Tensor, ...]]:
    layer, count = norm.layer, len(norm.affine)

    def of_input(
        grad: Tensor, x: Tensor, weight: Parameter, eps: float, bias: Parameter = None
    ) -> tuple[Tensor, ...]:
        dx, *of_affine = references.norm_backward(grad, None, x, weight, bias, eps, False, layer)
        return dx.to(x.dtype), *of_affine[:count]

    def of_output(
        grad: Tensor,
        y: Tensor,
        weight: Parameter,
        rstd: Tensor,
        eps: float,
        bias: Parameter = None,
    ) -> tuple[Tensor, ...]:
        dx, *of_affine = references.backward_from_output(grad, y, weight, bias, rstd, eps, layer)
        return dx, *of_affine[:count]

    def of_sum(
        grad: Tensor,
        grad_h: Parameter,
        h: Tensor,
        weight: Parameter,
        eps: float,
        zero_centered: bool,
        bias: Parameter = None,
        separate_x: bool = True,
        row_scale: Parameter = None,
        p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
    ) -> tuple[Tensor, ...]:
        dh, *of_affine = references.norm_backward(
            grad, grad_h, h, weight, bias, eps, zero_centered, layer
        )
        dx = grad.new_empty(0)
        if separate_x:
            dx = references.branch(dh, row_scale, p, seed, offset).to(grad.dtype, copy=True)
        return dh.to(h.dtype), dx, *of_affine[:count]

    if norm.source:
        return of_sum
    return of_output if norm.sink else of_input


def _fake_backward(norm: Norm) -> Callable[..., tuple[Tensor, ...]]:
    def fake(
        grad: Tensor,
        weight: Parameter,
        bias: Parameter = None,
        h: Parameter = None,
        separate_x: bool = True,
    ) -> tuple[Tensor, ...]:
        parameters = (weight, bias) if norm.layer else (weight,)
        of_affine = (grad.new_empty(0) if p is None else p.new_empty(p.shape) for p in parameters)
        if h is None:
            return grad.new_empty(grad.shape), *of_affine
        return h.new_empty(h.shape), grad.new_empty(grad.shape if separate_x else 0), *of_affine

    return fake


def backward(norm: Norm, **settings: Any) -> Op:
    """Enters the gradient of an operator into the catalogue and registers it.

    Args:
        norm: which operator's; that of one `with_rstd` starts from its output.
        **settings: of its `Op`: samples, peers and the like.
    """
    from_output, added = norm.sink == "with_rstd", bool(norm.source)
    schema, fake = norm.backward_schema, _fake_backward(norm)
    unread = () if from_output or added else ("bias",)
    function = f"{norm.source}_norm" if added else Norm(norm.layer).name
    op = Op(
        schema,
        family="norm",
        source=f"{function}/backward{'_from_output' * from_output}",
        reference=_reference_backward(norm),
        ladder=ladders.backward(norm.layer, from_output, added),
        triton=f"norm_backward_triton:{norm.backward_name}",
        fake=fake,
        check=_check_backward(norm),
        cost=Cost(moved(schema, fake, unread), lambda grad: norm.backward_flops * grad.numel()),
        **settings,
    )
    dispatch.register(catalogue.add(op))
    return op


# --- derivatives ----------------------------------------------------------------------------------


def derivative(norm: Norm) -> Callable[..., Gradients]:
    """Of a norm without a source."""

    def gradients(
        grad: Tensor, x: Tensor, weight: Parameter, eps: float, bias: Parameter = None
    ) -> Gradients:
        affine = (weight, bias) if norm.layer else (weight,)
        run = getattr(torch.ops.warpsmith, norm.backward_name)
        return dict(zip(("x", *norm.affine), run(grad, x, *affine, eps), strict=True))

    return gradients


def derivative_from_output(norm: Norm) -> Callable[..., Gradients]:
    """Of a norm that keeps the rstd of its rows."""

    def gradients(
        grad_y: Tensor,
        y: Tensor,
        weight: Parameter,
        rstd: Tensor,
        eps: float,
        bias: Parameter = None,
    ) -> Gradients:
        affine = (weight, bias) if norm.layer else (weight,)
        run = getattr(torch.ops.warpsmith, norm.backward_name)
        return dict(zip(("x", *norm.affine), run(grad_y, y, *affine, rstd, eps), strict=True))

    return gradients
