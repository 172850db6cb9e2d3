"""What the tensors of samples and benchmarks are made of."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


def is_fp8(dtype: torch.dtype) -> bool:
    return dtype in (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Inputs:
    """Makes the tensors of a sample: one dtype, one device, one seed.

    Values are normal with one outlier of 30 in every 97 values, so that an accumulator or an
    exponential that is only right near zero does not pass.
    """

    dtype: torch.dtype = torch.float32
    device: str | torch.device = "cpu"
    seed: int = 0
    #: Of the arguments that have one of their own, where a signature says so.
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict, hash=False)

    def of(self, argument: str) -> Inputs:
        """The same for an argument by its name, in the dtype that the signature gives it."""
        return replace(self, dtype=self.dtypes.get(argument, self.dtype))

    def generator(self, shape: tuple[int, ...]) -> torch.Generator:
        key = zlib.crc32(repr((shape, self.seed)).encode())
        # The meta device has no generator of its own, and takes the CPU's.
        device = "cpu" if self._is_meta else self.device
        return torch.Generator(device=device).manual_seed(key)

    @property
    def _is_meta(self) -> bool:
        return torch.device(self.device).type == "meta"

    def plain(self, *shape: int, scale: float = 1.0, salt: int = 0) -> Tensor:
        """Normal values, no outliers: what benchmarks use. Integers are uniform, of magnitude 1000
        at most.
        """
        if self._is_meta:
            return torch.empty(shape, dtype=self.dtype, device="meta")
        generator = self.generator((*shape, salt))
        if not self.dtype.is_floating_point and not self.dtype.is_complex:
            least = max(torch.iinfo(self.dtype).min, -1000)
            most = min(torch.iinfo(self.dtype).max, 1000) + 1
            return torch.randint(
                least, most, shape, generator=generator, device=self.device, dtype=self.dtype
            )
        compute = torch.float32 if is_fp8(self.dtype) else self.dtype
        x = torch.randn(shape, generator=generator, device=self.device, dtype=compute)
        if scale != 1.0:
            x.mul_(scale)
        return x.to(self.dtype)

    def randn(self, *shape: int, scale: float = 1.0, salt: int = 0) -> Tensor:
        x = self.plain(*shape, scale=scale, salt=salt)
        if x.numel() > 3 and x.dtype.is_floating_point and not self._is_meta:
            flat = x.view(-1)
            flat[salt % 3 :: 97] = 30.0 if x.numel() % 2 else -30.0
        return x

    def misaligned(self, *shape: int, offset: int = 1, salt: int = 0) -> Tensor:
        """Contiguous, but its first element lies `offset` elements past an aligned address."""
        n = 1
        for size in shape:
            n *= size
        return self.randn(n + offset, salt=salt)[offset:].view(shape)
