"""Dropout by Philox4x32-10, in PyTorch: what the kernels drop, element by element.

Mirrors csrc/device/philox.h. Element i of a tensor, counted in row-major order, gets word i % 4 of
philox(counter = (i / 4, offset), key = seed), each a 64-bit number in two words, low one first; it
is kept where that word is at least `threshold(p)`. Nothing else enters, so the result is the same
for every kernel, tiling and device, and the backward pass can compute it again.

Reference: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
#: Groups at a time, because each takes over a hundred bytes meanwhile.
_PIECE = 1 << 24

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def threshold(p: float) -> int:
    """Of the 2^32 words, how many drop their element."""
    return round(p * 2**32)


def keep_scale(p: float) -> float:
    """What kept elements are multiplied by, so that the expectation stays what it was."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def check(op: str, p: float) -> None:
    """Raises where `p` is no probability."""
    if not 0.0 <= p <= 1.0:
        raise RuntimeError(f"{op}: expected p to be between 0 and 1, got {p:g}")


def signed(number: int | None) -> int:
    """A seed or an offset as schemas take it: from 2^63 on in two's complement; None stands for 0.
    What is no number of 64 bits stays as it is, and is refused there.
    """
    if number is None:
        return 0
    return number - 2**64 if isinstance(number, int) and 2**63 <= number < 2**64 else number


def drawn(seed: int | None, offset: int | None, p: float) -> tuple[int, int] | None:
    """Seed and offset of a call: those that are given, 0 for the one that is not; without either a
    fresh seed from PyTorch's generator for the CPU, which `torch.manual_seed` seeds and
    checkpointing restores.

    None where a fresh one would be the same for ever: in compiled code, and while a CUDA graph is
    recorded; and under `vmap` with different randomness, where each of a batch has its own. There
    PyTorch's own dropout draws.
    """
    if seed is not None or offset is not None or p == 0.0:
        return signed(seed), signed(offset)
    if torch.compiler.is_compiling():
        return None
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    if torch._C._are_functorch_transforms_active() and _differs_in_batch():
        return None
    with torch._C._DisableTorchDispatch():  # a number even where tensors have no data
        if torch._C._are_functorch_transforms_active():  # which write to no tensor from outside
            return _place().random_().item(), 0  # type: ignore[return-value]
        try:
            place = _places.own
        except AttributeError:
            with torch.inference_mode(mode=False):  # which would keep it to itself
                place = _places.own = _place()
        return place.random_().item(), 0


#: Where a thread draws seeds.
_places = threading.local()


def _place() -> Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")


def _differs_in_batch() -> bool:
    """Whether some `vmap` around the call has asked for that."""
    from torch._C import _functorch as functorch

    return any(
        level.key() == functorch.TransformType.Vmap
        and functorch.CVmapInterpreterPtr(level).randomness() == functorch.RandomnessType.Different
        for level in functorch.get_interpreter_stack() or ()
    )


def _product(a: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a * x, for words in int64: half a word at a time, nothing overflows."""
    low, high = a * (x & 0xFFFF), a * (x >> 16)
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & _WORD


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32.

    Args:
        counter: four int64 tensors of one shape, each of 32-bit words.
        key: two words.

    Returns:
        Four int64 tensors of 32-bit words.
    """
    x, y, z, w = counter
    for r in range(ROUNDS):
        k0, k1 = (key[0] + r * WEYL[0]) & _WORD, (key[1] + r * WEYL[1]) & _WORD
        (high_x, low_x), (high_z, low_z) = _product(MULTIPLIERS[0], x), _product(MULTIPLIERS[1], z)
        x, y, z, w = high_z ^ y ^ k0, low_z, high_x ^ w ^ k1, low_x
    return x, y, z, w


def split(number: int) -> tuple[int, int]:
    """Low and high word of a 64-bit number; negative ones in two's complement."""
    return number & _WORD, (number >> 32) & _WORD


def keep_mask(
    shape: tuple[int, ...] | torch.Size,
    p: float,
    seed: int,
    offset: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Which elements dropout keeps.

    Args:
        shape: of the tensor that is dropped from.
        p: probability of dropping an element, rounded to a multiple of 2^-32.
        seed: of the generator; any 64-bit number.
        offset: which of the independent streams of that seed; any 64-bit number.
        device: of the result.

    Returns:
        A bool tensor, True where the element is kept.
    """
    if torch.device(device).type == "meta":
        return torch.empty(shape, dtype=torch.bool, device=device)
    n = math.prod(shape)
    groups = -(-n // 4)
    pieces = [
        _kept(torch.arange(start, min(start + _PIECE, groups), device=device), p, seed, offset)
        for start in range(0, max(groups, 1), _PIECE)
    ]
    return torch.cat(pieces)[:n].view(shape)


def _kept(group: Tensor, p: float, seed: int, offset: int) -> Tensor:
    """The mask of the elements of those groups of four."""
    low, high = (torch.full_like(group, word) for word in split(offset))
    words = philox((group & _WORD, group >> 32, low, high), split(seed))
    return (torch.stack(words, -1) >= threshold(p)).view(-1)
