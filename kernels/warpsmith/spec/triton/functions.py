"""The functions of the elementwise family in Triton, in float32. A new activation is one function
here and one for its gradient; one that gates, a third that gives its value and its derivative.

`EXACT` is set for float32 data. Narrower data take approximate reciprocals and a shorter
polynomial, accurate to what their rounding keeps, because at full memory speed the arithmetic of
16-bit data would otherwise be the bound.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from warpsmith.core.twins import interpreting

INTERPRETED = tl.constexpr(interpreting())

LOG2E = tl.constexpr(1.4426950408889634)
#: What float32 drops of log2(e).
LOG2E_REST = tl.constexpr(1.925963033500915e-08)
LN2 = tl.constexpr(0.6931471805599453)
#: Below, exp(x) rounds to 0.
EXP_ZERO = tl.constexpr(-104.0)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
#: gelu_tanh is x logistic(x (LINEAR + CUBIC x^2)): 2 sqrt(2/pi), and 0.044715 of it.
LINEAR = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.07135481627260025)
QUICK_SLOPE = tl.constexpr(1.702)
#: Beyond this, tanh(softplus(x)) rounds to 1.
MISH_LINEAR = tl.constexpr(20.0)


@triton.jit
def special(x, INSTRUCTION: tl.constexpr):
    """What the special-function unit computes of float32."""
    return tl.inline_asm_elementwise(
        INSTRUCTION, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def exponential_of_two(x, NORMAL: tl.constexpr = False):
    """2^x; `NORMAL`: subnormal results become 0, three instructions fewer."""
    if INTERPRETED:
        return tl.exp2(x)
    elif NORMAL:
        return special(x, "ex2.approx.ftz.f32 $0, $1;")
    else:
        return special(x, "ex2.approx.f32 $0, $1;")


@triton.jit
def exponential(x):
    return exponential_of_two(x * LOG2E)


@triton.jit
def exponential_fine(x, EXACT: tl.constexpr):
    """exp(x); exact, without the error that rounding x log2(e) brings in."""
    if EXACT:
        x = tl.where(x < EXP_ZERO, EXP_ZERO, x)  # NaN passes, -inf must not become one
        scaled = x * LOG2E
        rest = tl.fma(x, LOG2E, -scaled) + x * LOG2E_REST
        e = exponential_of_two(scaled)
        return tl.fma(e, rest * LN2, e)
    else:
        return exponential(x)


@triton.jit
def reciprocal(x, NORMAL: tl.constexpr = False):
    """1/x within 1 ulp; `NORMAL`: for x and 1/x in the normal range, two instructions fewer."""
    if INTERPRETED:
        return 1.0 / x
    elif NORMAL:
        return special(x, "rcp.approx.ftz.f32 $0, $1;")
    else:
        return special(x, "rcp.approx.f32 $0, $1;")


@triton.jit
def divide(x, y, EXACT: tl.constexpr, NORMAL: tl.constexpr = False):
    """x / y; `NORMAL`: for y and 1/y in the normal range."""
    if EXACT:
        return tl.div_rn(x, y)
    else:
        return x * reciprocal(y, NORMAL)


@triton.jit
def one_and_exponential(x):
    """1 + exp(-x), for which the exponential's subnormals are nothing."""
    return 1.0 + exponential_of_two(x * -LOG2E, NORMAL=True)


@triton.jit
def logistic(x, EXACT: tl.constexpr):
    return divide(1.0, one_and_exponential(x), EXACT)


@triton.jit
def logistic_and_slope(x, EXACT: tl.constexpr):
    """s = logistic(x) and s (1 - s), from exp(-|x|), which neither overflows nor cancels."""
    e = exponential(-tl.abs(x))
    r = divide(1.0, 1.0 + e, EXACT, NORMAL=True)
    falling = e * r
    return tl.where(x < 0.0, falling, r), falling * r


@triton.jit
def logistic_product_and_slope(x, K: tl.constexpr, EXACT: tl.constexpr):
    """x s, s = logistic(K x), and its derivative K s (1/K + x (1 - s)).

    Of s and 1 - s the smaller one comes from exp(-|K x|), the larger one from the smaller. As a
    product the slope keeps its digits where x (1 - s) and 1/K cancel.
    """
    e = exponential(-tl.abs(x * K))
    smaller = e * divide(1.0, 1.0 + e, EXACT, NORMAL=True)
    larger = 1.0 - smaller
    s = tl.where(x < 0.0, smaller, larger)
    rest = tl.where(x < 0.0, larger, smaller)
    return x * s, K * s * tl.fma(x, rest, 1.0 / K)


@triton.jit
def normal_tail(a, e, DIGITS: tl.constexpr):
    """Phi(-a) for a >= 0, given e = exp(-a^2 / 2), to about so many decimal digits.

    e t P(t), t = 1 / (1 + c a), P fitted for the smallest largest relative error: the tail keeps
    its relative accuracy, where 1 + erf cancels. The fit to 8 digits holds from a = 1 on.
    """
    if DIGITS == 8:
        t = reciprocal(tl.fma(a, 0.45, 1.0), NORMAL=True)
        p = -0.0689663514494896
        p = tl.fma(t, p, 0.2646433413028717)
        p = tl.fma(t, p, -0.34636619687080383)
        p = tl.fma(t, p, 0.1056700348854065)
        p = tl.fma(t, p, 0.038161564618349075)
        p = tl.fma(t, p, 0.14821270108222961)
        p = tl.fma(t, p, 0.17909587919712067)
        p = tl.fma(t, p, 0.17953920364379883)
    elif DIGITS == 6:
        t = reciprocal(tl.fma(a, 0.30, 1.0), NORMAL=True)
        p = 0.0356747565
        p = tl.fma(t, p, -0.157202996)
        p = tl.fma(t, p, 0.206353329)
        p = tl.fma(t, p, -0.0536834536)
        p = tl.fma(t, p, 0.12856151)
        p = tl.fma(t, p, 0.0999135323)
        p = tl.fma(t, p, 0.120753949)
        p = tl.fma(t, p, 0.119629299)
    else:
        t = reciprocal(tl.fma(a, 0.38, 1.0), NORMAL=True)
        p = -0.0899283316
        p = tl.fma(t, p, 0.188876484)
        p = tl.fma(t, p, 0.0919796863)
        p = tl.fma(t, p, 0.157829504)
        p = tl.fma(t, p, 0.151225133)
    return e * (t * p)


@triton.jit
def normal_cdf(x, e, DIGITS: tl.constexpr):
    """The normal distribution's cumulative function at x, given e = exp(-x^2 / 2), to about 8, 6 or
    4 decimal digits.
    """
    a = tl.abs(x)
    tail = normal_tail(a, e, DIGITS)
    cdf = tl.where(x < 0.0, tail, 1.0 - tail)
    if DIGITS == 8:
        # Around 0, an odd polynomial: fewer roundings than a quotient and an exponential take.
        square = x * x
        q = -7.462894700438483e-06
        q = tl.fma(square, q, 0.00011295217700535432)
        q = tl.fma(square, q, -0.00118578493129462)
        q = tl.fma(square, q, 0.009973078034818172)
        q = tl.fma(square, q, -0.06649031490087509)
        q = tl.fma(square, q, 0.3989422917366028)
        cdf = tl.where(a < 1.0, tl.fma(x, q, 0.5), cdf)
    return cdf


# --- functions: (x, p) -> f(x), p being the parameter ---------------------------------------------


@triton.jit
def relu(x, p, EXACT: tl.constexpr):
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def sigmoid(x, p, EXACT: tl.constexpr):
    return logistic(x, EXACT)


@triton.jit
def elu(x, p, EXACT: tl.constexpr):
    """x where positive, else p (exp(x) - 1); near 0, where that cancels, by its series."""
    if EXACT:
        REACH: tl.constexpr = -0.69
        s = tl.fma(x, 1 / 362880, 1 / 40320)
        s = tl.fma(x, s, 1 / 5040)
        s = tl.fma(x, s, 1 / 720)
        s = tl.fma(x, s, 1 / 120)
        s = tl.fma(x, s, 1 / 24)
    else:
        REACH: tl.constexpr = -0.125
        s = 1 / 24
    s = tl.fma(x, s, 1 / 6)
    s = tl.fma(x, s, 0.5)
    series = tl.fma(x * x, s, x)
    below = tl.where(x > REACH, series, exponential(x) - 1.0)
    return tl.where(x > 0.0, x, p * below)


@triton.jit
def gelu(x, p, EXACT: tl.constexpr):
    if EXACT:
        return x * normal_cdf(x, exponential(-0.5 * x * x), 8)
    else:
        return x * normal_cdf(x, exponential_of_two(x * x * (-0.5 * LOG2E), NORMAL=True), 4)


@triton.jit
def gelu_tanh(x, p, EXACT: tl.constexpr):
    """0.5 x (1 + tanh(u)) = x logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    return x * logistic(x * tl.fma(x * x, CUBIC, LINEAR), EXACT)


@triton.jit
def silu(x, p, EXACT: tl.constexpr):
    return divide(x, one_and_exponential(x), EXACT)


@triton.jit
def hardswish(x, p, EXACT: tl.constexpr):
    clamped = tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0)
    return x * (clamped * (1 / 6))


@triton.jit
def hardshrink(x, p, EXACT: tl.constexpr):
    return tl.where((x >= -p) & (x <= p), 0.0, x)


@triton.jit
def quick_gelu(x, p, EXACT: tl.constexpr):
    return x * logistic(x * QUICK_SLOPE, EXACT)


@triton.jit
def mish(x, p, EXACT: tl.constexpr):
    """x tanh(softplus(x)) = x n / (n + 2), n = e (e + 2), e = exp(x)."""
    e = exponential_fine(tl.minimum(x, MISH_LINEAR), EXACT)
    n = e * (e + 2.0)
    return tl.where(x > MISH_LINEAR, x, x * divide(n, n + 2.0, EXACT, NORMAL=True))


# --- functions and their derivatives: (x, p) -> f(x), f'(x) ---------------------------------------


@triton.jit
def silu_and_slope(x, p, EXACT: tl.constexpr):
    return logistic_product_and_slope(x, 1.0, EXACT)


@triton.jit
def gelu_and_slope(x, p, EXACT: tl.constexpr):
    # The derivative has a zero near -0.75, around which its terms cancel.
    if EXACT:
        e = exponential(-0.5 * x * x)
        cdf = normal_cdf(x, e, 8)
    else:
        e = exponential_of_two(x * x * (-0.5 * LOG2E))
        cdf = normal_cdf(x, e, 6)
    return x * cdf, tl.fma(x, e * INV_SQRT_2PI, cdf)


@triton.jit
def gelu_tanh_and_slope(x, p, EXACT: tl.constexpr):
    # Where the square is capped, the logistic function has long reached its limit.
    square = tl.minimum(x * x, 1.0e6)
    slope = tl.fma(square, 3.0 * CUBIC, LINEAR)
    s, ds = logistic_and_slope(x * tl.fma(square, CUBIC, LINEAR), EXACT)
    return x * s, tl.fma(x * ds, slope, s)


# --- gradients: (g, x, p) -> g f'(x), as PyTorch has them at kinks, infinities and NaN ------------


@triton.jit
def relu_backward(g, x, p, EXACT: tl.constexpr):
    return tl.where(x <= 0.0, 0.0, g)


@triton.jit
def sigmoid_backward(g, x, p, EXACT: tl.constexpr):
    _, slope = logistic_and_slope(x, EXACT)
    return g * slope


@triton.jit
def elu_backward(g, x, p, EXACT: tl.constexpr):
    return tl.where(x <= 0.0, g * (p * exponential(x)), g)


@triton.jit
def gelu_backward(g, x, p, EXACT: tl.constexpr):
    return g * gelu_and_slope(x, p, EXACT)[1]


@triton.jit
def gelu_tanh_backward(g, x, p, EXACT: tl.constexpr):
    return g * gelu_tanh_and_slope(x, p, EXACT)[1]


@triton.jit
def silu_backward(g, x, p, EXACT: tl.constexpr):
    return g * silu_and_slope(x, p, EXACT)[1]


@triton.jit
def hardswish_backward(g, x, p, EXACT: tl.constexpr):
    between = tl.where(x < 3.0, g * tl.fma(x, 1 / 3, 0.5), g)
    return tl.where(x <= -3.0, 0.0, between)


@triton.jit
def hardshrink_backward(g, x, p, EXACT: tl.constexpr):
    return tl.where((x >= -p) & (x <= p), 0.0, g)


@triton.jit
def quick_gelu_backward(g, x, p, EXACT: tl.constexpr):
    return g * logistic_product_and_slope(x, QUICK_SLOPE, EXACT)[1]


@triton.jit
def mish_backward(g, x, p, EXACT: tl.constexpr):
    """t + x (1 - t^2) logistic(x), t = tanh(softplus(x)), the second factor without cancelling."""
    e = exponential_fine(tl.minimum(x, MISH_LINEAR), EXACT)
    n = e * (e + 2.0)
    r = divide(1.0, n + 2.0, EXACT, NORMAL=True)
    derivative = tl.fma(x, 4.0 * (e * r) * ((e + 1.0) * r), n * r)
    # x - x: NaN at infinity, as in PyTorch.
    return g * tl.where(x > MISH_LINEAR, 1.0 + (x - x), derivative)


# --- of two and of three values -------------------------------------------------------------------


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def mul_add(x, y, z):
    return tl.fma(x, y, z)
