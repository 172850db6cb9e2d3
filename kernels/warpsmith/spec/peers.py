"""Makes a peer's backward callable in a benchmark, or a peer that wants what its forward saved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


def stream() -> torch.cuda.Stream:
    """The stream of the current GPU on which everything is measured.

    Autograd runs a backward on the stream of its forward, and a graph can only capture what stays
    on its own stream: whoever prepares state for a measured call (a retained autograd graph, say)
    does it here.
    """
    return _stream_of(torch.cuda.current_device())


@functools.cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class RetainedGraph:
    """Runs only the backward of a function: its graph is built once per input and kept.

    Args:
        forward: takes what follows the output's gradient in the benchmarked call, returns one
            tensor, or a tuple where the gradient is one.

    Returns of a call:
        The gradients of the tensors among the arguments, in order; an empty tensor for a None.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.shape: torch.Size | None = None
        self.graphs: dict[tuple[int, ...], tuple[Any, list[Tensor]]] = {}

    def _build(self, args: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
        given = [
            a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in args
        ]
        with torch.enable_grad():
            out = self.forward(*given)
        return out, [a for a in given if isinstance(a, Tensor) and a.requires_grad]

    def __call__(self, grad: Any, *args: Any) -> Any:
        first = next(a for a in args if isinstance(a, Tensor))
        if first.shape != self.shape:
            self.graphs.clear()
            self.shape = first.shape
        key = tuple(a.data_ptr() for a in args if isinstance(a, Tensor))
        if key not in self.graphs:
            if first.is_cuda:
                # Autograd runs a backward on the stream of its forward.
                stream().wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream()):
                    self.graphs[key] = self._build(args)
                torch.cuda.current_stream().wait_stream(stream())
            else:
                self.graphs[key] = self._build(args)
        out, leaves = self.graphs[key]
        gradients = iter(torch.autograd.grad(out, leaves, grad, retain_graph=True))
        found = tuple(
            next(gradients) if isinstance(a, Tensor) else first.new_empty(0)
            for a in args
            if a is None or (isinstance(a, Tensor) and a.is_floating_point())
        )
        return found if len(found) > 1 else found[0]


class PerInput:
    """Something computed from a tensor once, which a peer would have saved in its forward. What
    else it is computed from belongs to that tensor: it is the same in every call.
    """

    def __init__(self, compute: Callable[..., Any]) -> None:
        self.compute = compute
        # Not by address, which another tensor may have next.
        self.known = WeakTensorKeyDictionary()

    def __call__(self, x: Tensor, *args: Any) -> Any:
        found = self.known.get(x)
        if found is None:
            found = self.compute(x, *args)
            if found is not x:  # its own key would never go
                self.known[x] = found
        return found
