"""Element types to float32 and back.

fp8 travels as bytes and follows PyTorch, not the hardware's saturation: what rounds beyond the
largest finite value becomes NaN in e4m3, which has no infinity, and infinity in e5m2. GPUs from
sm_89 on convert e4m3 in hardware; older ones, and the interpreter, in integer arithmetic. The
interpreter's own bf16 drops subnormals, so there bf16 travels as 16-bit integers too.

e5m2 is converted by inline assembly, four values at a time. Triton takes it only for tensors of a
multiple of four elements, so a smaller one (a bias of 2 columns, a scalar) goes the portable way.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode(value, FORMAT: tl.constexpr, HARDWARE: tl.constexpr):
    """`value` as float32; integers are read as `FORMAT`: "e4m3", "e5m2" or "bf16"."""
    if FORMAT == "":
        return value.to(tl.float32)
    elif HARDWARE:
        if FORMAT == "e4m3":
            return value.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        elif value.numel < 4:
            return decode_portable(value, FORMAT)
        else:
            # By way of float16, exactly; two values an instruction.
            return tl.inline_asm_elementwise(
                "{ .reg .b16 low, high, x<4>; .reg .b32 a, b;"
                " mov.b32 {low, high}, $4;"
                " cvt.rn.f16x2.e5m2x2 a, low; cvt.rn.f16x2.e5m2x2 b, high;"
                " mov.b32 {x0, x1}, a; mov.b32 {x2, x3}, b;"
                " cvt.f32.f16 $0, x0; cvt.f32.f16 $1, x1;"
                " cvt.f32.f16 $2, x2; cvt.f32.f16 $3, x3; }",
                "=f,=f,=f,=f,r", [value], dtype=tl.float32, is_pure=True, pack=4,
            )  # fmt: skip
    elif FORMAT == "bf16":
        return (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return decode_portable(value, FORMAT)


@triton.jit
def encode(x, FORMAT: tl.constexpr, HARDWARE: tl.constexpr, ELEMENT: tl.constexpr):
    """Float32 rounded to nearest even: to `ELEMENT`, or to the integers of a `FORMAT`."""
    if FORMAT == "":
        return x.to(ELEMENT)
    elif HARDWARE:
        if FORMAT == "e4m3":
            # Halfway past 448, the largest finite value; a tie rounds down to it.
            x = tl.where(tl.abs(x) > 464.0, float("nan"), x)
            return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        elif x.numel < 4:
            return encode_portable(x, FORMAT)
        else:
            # Not by a cast: Triton 3.6 mixes up elements where a thread holds fewer than four in a
            # row. The instruction saturates, infinities included: halfway past 57344, where a tie
            # rounds up, 1 is added, as infinity is the code after the largest number's.
            return tl.inline_asm_elementwise(
                "{ .reg .b16 low, high; .reg .b32 x<4>, m<4>, codes;"
                " cvt.rn.satfinite.e5m2x2.f32 low, $2, $1;"
                " cvt.rn.satfinite.e5m2x2.f32 high, $4, $3;"
                " mov.b32 codes, {low, high};"
                " abs.f32 x0, $1; abs.f32 x1, $2; abs.f32 x2, $3; abs.f32 x3, $4;"
                " set.ge.u32.f32 m0, x0, 0f47700000; set.ge.u32.f32 m1, x1, 0f47700000;"
                " set.ge.u32.f32 m2, x2, 0f47700000; set.ge.u32.f32 m3, x3, 0f47700000;"
                " and.b32 m0, m0, 0x1; and.b32 m1, m1, 0x100;"
                " and.b32 m2, m2, 0x10000; and.b32 m3, m3, 0x1000000;"
                " or.b32 m0, m0, m1; or.b32 m2, m2, m3; or.b32 m0, m0, m2;"
                " add.u32 $0, codes, m0; }",
                "=r,f,f,f,f", [x], dtype=tl.uint8, is_pure=True, pack=4,
            )  # fmt: skip
    elif FORMAT == "bf16":
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.int16)
    else:
        return encode_portable(x, FORMAT)


@triton.jit
def decode_portable(value, FORMAT: tl.constexpr):
    MANTISSA: tl.constexpr = 3 if FORMAT == "e4m3" else 2
    BIAS: tl.constexpr = 7 if FORMAT == "e4m3" else 15
    bits = value.to(tl.int32)
    magnitude = bits & 0x7F
    # A float32 with the same fields is too small by a power of two, subnormals included.
    x = (magnitude << (23 - MANTISSA)).to(tl.float32, bitcast=True) * (2.0 ** (127 - BIAS))
    if FORMAT == "e4m3":
        x = tl.where(magnitude == 0x7F, float("nan"), x)
    else:
        x = tl.where(magnitude == 0x7C, float("inf"), x)
        x = tl.where(magnitude > 0x7C, float("nan"), x)
    return tl.where(bits >= 0x80, -x, x)


@triton.jit
def encode_portable(x, FORMAT: tl.constexpr):
    MANTISSA: tl.constexpr = 3 if FORMAT == "e4m3" else 2
    BIAS: tl.constexpr = 7 if FORMAT == "e4m3" else 15
    DROPPED: tl.constexpr = 23 - MANTISSA
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    rounded = magnitude + ((1 << (DROPPED - 1)) - 1) + ((magnitude >> DROPPED) & 1)
    code = (rounded - ((127 - BIAS) << 23)) >> DROPPED
    # Below the normal range: adding 2^23 steps of the subnormal grid rounds to a multiple of it.
    STEPS: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
    shifted = magnitude.to(tl.float32, bitcast=True) + 2.0 ** (24 - BIAS - MANTISSA)
    subnormal = shifted.to(tl.int32, bitcast=True) - STEPS
    code = tl.where(magnitude < ((128 - BIAS) << 23), subnormal, code)
    if FORMAT == "e4m3":
        code = tl.where(tl.abs(x) > 464.0, 0x7F, code)
    else:
        code = tl.where(tl.abs(x) >= 61440.0, 0x7C, code)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | sign).to(tl.uint8)
