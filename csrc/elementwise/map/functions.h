// The functions of the elementwise family and how they meet their operands. A new activation is one struct in
// activations.h, a name in `Activations` (or `GatedActivations`), a row in the Python spec and a Triton function.
//
// Libraries are made of some of them each: `Maps` is declared by a header in parts/, which the build includes before a
// source.
#pragma once

#include <tuple>
#include <type_traits>

#include "device/activations.h"

namespace warpsmith {

// Of two values, and of three.

struct Add {
  static constexpr const char* name = "add";
  template <bool exact>
  __device__ static float forward(float x, float y) {
    return x + y;
  }
};

struct Mul {
  static constexpr const char* name = "mul";
  template <bool exact>
  __device__ static float forward(float x, float y) {
    return x * y;
  }
};

// x y + z, rounded once
struct MulAdd {
  static constexpr const char* name = "mul_add";
  template <bool exact>
  __device__ static float forward(float x, float y, float z) {
    return fmaf(x, y, z);
  }
};

using Activations = std::tuple<Relu, Sigmoid, Elu, Gelu, GeluTanh, Silu, Hardswish, Hardshrink, QuickGelu, Mish>;
using BiasActivations = std::tuple<Gelu, GeluTanh>;
using GatedActivations = std::tuple<Silu, Gelu, GeluTanh>;
using BinaryFunctions = std::tuple<Add, Mul>;
using TernaryFunctions = std::tuple<MulAdd>;

// How a function meets its operands. `apply(out, in, p)` works on one element. `has_table`: whether it is a function of
// one value, or the product of one with the others.

template <class F>
struct Unary {
  static constexpr int outputs = 1, inputs = 1;
  static constexpr bool is_gradient = false, has_table = true;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[1], float p) {
    out[0] = F::template forward<exact>(in[0], p);
  }
};

template <class F>
struct UnaryBackward {  // in: g, x
  static constexpr int outputs = 1, inputs = 2;
  static constexpr bool is_gradient = true, has_table = !MasksGradient<F>;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[2], float p) {
    out[0] = F::template backward<exact>(in[0], in[1], p);
  }
};

template <class F>
struct Bias {  // in: x, bias
  static constexpr int outputs = 1, inputs = 2;
  static constexpr bool is_gradient = false, has_table = false;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[2], float p) {
    out[0] = F::template forward<exact>(in[0] + in[1], p);
  }
};

template <class F>
struct BiasBackward {  // in: g, x, bias
  static constexpr int outputs = 1, inputs = 3;
  static constexpr bool is_gradient = true, has_table = false;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[3], float p) {
    out[0] = F::template backward<exact>(in[0], in[1] + in[2], p);
  }
};

template <class F>
struct Gated {  // in: gate, up
  static constexpr int outputs = 1, inputs = 2;
  static constexpr bool is_gradient = false, has_table = true;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[2], float p) {
    out[0] = F::template forward<exact>(in[0], p) * in[1];
  }
};

template <class F>
struct GatedBackward {  // in: g, gate, up; out: d gate, d up
  static constexpr int outputs = 2, inputs = 3;
  static constexpr bool is_gradient = true, has_table = !MasksGradient<F>;
  template <bool exact>
  __device__ static void apply(float (&out)[2], const float (&in)[3], float p) {
    out[0] = F::template backward<exact>(in[0] * in[2], in[1], p);
    out[1] = in[0] * F::template forward<exact>(in[1], p);
  }
};

template <class F>
struct Binary {  // in: x, y
  static constexpr int outputs = 1, inputs = 2;
  static constexpr bool is_gradient = false, has_table = false;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[2], float) {
    out[0] = F::template forward<exact>(in[0], in[1]);
  }
};

template <class F>
struct Ternary {  // in: x, y, z
  static constexpr int outputs = 1, inputs = 3;
  static constexpr bool is_gradient = false, has_table = false;
  template <bool exact>
  __device__ static void apply(float (&out)[1], const float (&in)[3], float) {
    out[0] = F::template forward<exact>(in[0], in[1], in[2]);
  }
};

template <template <class> class Wrap, class List>
struct Wrapped;

template <template <class> class Wrap, class... F>
struct Wrapped<Wrap, std::tuple<F...>> {
  using type = std::tuple<Wrap<F>...>;
};

}  // namespace warpsmith
