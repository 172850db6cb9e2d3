// Heads and angles of rotary positions as bindings get them, checked in the words of kernels/warpsmith/spec/rotary.py.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "host/checks.h"
#include "host/memory.h"
#include "rotary/rotary.h"

namespace warpsmith {

using OptionalTensor = std::optional<Tensor>;

struct RotaryOptions {
  double factor;
  bool interleaved, inverse;
};

// What says which angles.
struct RotaryOperands {
  const OptionalTensor &cos, &sin, &positions, &turns, &axes;
};

inline void check_rotary_dtype(std::string_view op, std::string_view name, const Tensor& x, ScalarType type) {
  if (x.scalar_type() == type) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(x.scalar_type()));
}

inline void check_rotary_heads(std::string_view op, const Tensor& q, const Tensor& k) {
  check_wide_floating(op, "q", q);
  if (q.dim() != 4) fail(op, "expected q to have shape [batch, tokens, heads, d], got ", shape_text(q.sizes()));
  check_device_like(op, "k", k, q, "q");
  if (k.scalar_type() != q.scalar_type()) {
    fail(op, "expected k to have dtype ", dtype_name(q.scalar_type()), " like q, got ", dtype_name(k.scalar_type()));
  }
  if (k.dim() != 4 || k.size(0) != q.size(0) || k.size(1) != q.size(1) || k.size(3) != q.size(3)) {
    fail(op, "expected k to have the batch, tokens and d of q, ", shape_text(q.sizes()), ", got ",
         shape_text(k.sizes()));
  }
}

// cos and sin, and what of positions they need.
inline void check_rotary_tables(std::string_view op, const Tensor& q, const RotaryOperands& a) {
  const Tensor &cos = *a.cos, &sin = *a.sin;
  const int64_t batch = q.size(0), tokens = q.size(1);
  check_device_like(op, "cos", cos, q, "q");
  if (cos.scalar_type() != ScalarType::Float && cos.scalar_type() != q.scalar_type()) {
    fail(op, "expected cos to have dtype torch.float32 or that of q, ", dtype_name(q.scalar_type()), ", got ",
         dtype_name(cos.scalar_type()));
  }
  const bool by_token =
      cos.dim() == 3 && (cos.size(0) == 1 || cos.size(0) == batch) && cos.size(1) == tokens && !a.positions;
  if (!by_token && cos.dim() != 2) {
    fail(op, "expected cos to have shape [rows, pairs], or without positions [batch, tokens, pairs], got ",
         shape_text(cos.sizes()));
  }
  check_like(op, "sin", sin, cos, "cos");
  if (cos.dim() == 2 && !a.positions && cos.size(0) < tokens) {
    fail(op, "expected cos to have a row for each of ", std::to_string(tokens), " tokens, got ",
         shape_text(cos.sizes()));
  }
}

inline void check_rotary_positions(std::string_view op, const Tensor& q, const RotaryOperands& a, int64_t pairs) {
  if (a.axes && !a.positions) fail(op, "expected positions beside axes");
  if (!a.positions) return;
  const Tensor& positions = *a.positions;
  check_device_like(op, "positions", positions, q, "q");
  if (positions.scalar_type() != ScalarType::Long && positions.scalar_type() != ScalarType::Int) {
    fail(op, "expected positions to have dtype torch.int64 or torch.int32, got ", dtype_name(positions.scalar_type()));
  }
  const int64_t rank = a.axes ? 3 : 2, at = rank - 2;
  const bool fits = positions.dim() == rank && (positions.size(at) == 1 || positions.size(at) == q.size(0)) &&
                    positions.size(at + 1) == q.size(1);
  if (!fits) {
    fail(op, "expected positions to have shape ", a.axes ? "[axes, batch, tokens]" : "[batch, tokens]", " beside q of ",
         shape_text(q.sizes()), ", got ", shape_text(positions.sizes()));
  }
  if (!a.axes) return;
  check_device_like(op, "axes", *a.axes, q, "q");
  check_rotary_dtype(op, "axes", *a.axes, ScalarType::Int);
  if (a.axes->dim() != 1 || a.axes->size(0) != pairs) {
    fail(op, "expected axes to have shape (", std::to_string(pairs), ",), one for each pair, got ",
         shape_text(a.axes->sizes()));
  }
}

// Returns how many pairs of a head turn.
inline int64_t check_rotary(std::string_view op, const Tensor& q, const RotaryOperands& a) {
  if (a.cos.has_value() != a.sin.has_value()) fail(op, "expected both cos and sin, or neither");
  if (a.cos.has_value() == a.turns.has_value()) fail(op, "expected either cos and sin or turns");
  if (a.cos) {
    check_rotary_tables(op, q, a);
  } else {
    check_device_like(op, "turns", *a.turns, q, "q");
    check_rotary_dtype(op, "turns", *a.turns, ScalarType::Long);
    if (a.turns->dim() != 1) fail(op, "expected turns to have shape [pairs], got ", shape_text(a.turns->sizes()));
  }
  const Tensor& of = a.cos ? *a.cos : *a.turns;
  const int64_t pairs = of.size(of.dim() - 1);
  if (pairs < 1 || 2 * pairs > q.size(3)) {
    fail(op, "expected 1 to ", std::to_string(q.size(3) / 2), " pairs of a head of ", std::to_string(q.size(3)),
         " values, got ", std::to_string(pairs));
  }
  check_rotary_positions(op, q, a, pairs);
  return pairs;
}

// With contiguous rows and vectors: alive until the launch.
struct HeldRotary {
  OptionalTensor cos, sin, turns, axes;

  explicit HeldRotary(const RotaryOperands& a)
      : cos(a.cos ? OptionalTensor(with_unit_columns(*a.cos)) : std::nullopt),
        sin(a.sin ? OptionalTensor(with_unit_columns(*a.sin)) : std::nullopt),
        turns(dense(a.turns)),
        axes(dense(a.axes)) {}
};

inline RotaryTable rotary_table(const Tensor& x) {
  const bool by_token = x.dim() == 3;
  return {.data = x.data_ptr(), .batch = by_token ? step(x, 0) : 0, .row = step(x, by_token ? 1 : 0)};
}

inline RotaryAngles rotary_angles(const HeldRotary& held, const OptionalTensor& positions, int64_t pairs,
                                  const RotaryOptions& options) {
  const int64_t of_batch = held.axes ? 1 : 0;
  return {
      .cos = held.cos ? rotary_table(*held.cos) : RotaryTable{},
      .sin = held.sin ? rotary_table(*held.sin) : RotaryTable{},
      .turns = held.turns ? static_cast<const int64_t*>(held.turns->data_ptr()) : nullptr,
      .axes = held.axes ? static_cast<const int32_t*>(held.axes->data_ptr()) : nullptr,
      .positions = positions ? positions->data_ptr() : nullptr,
      .position_axis = held.axes ? step(*positions, 0) : 0,
      .position_batch = positions ? step(*positions, of_batch) : 0,
      .position_token = positions ? step(*positions, of_batch + 1) : 0,
      .rows = held.cos && held.cos->dim() == 2 ? held.cos->size(0) : 0,
      .axis_count = held.axes ? static_cast<int>(positions->size(0)) : 1,
      .pairs = static_cast<int>(pairs),
      .factor = static_cast<float>(options.factor),
      .interleaved = options.interleaved,
      .inverse = options.inverse,
      .wide = positions && positions->scalar_type() == ScalarType::Long,
      .table_dtype = held.cos ? *kernel_dtype(held.cos->scalar_type()) : Dtype::f32,
  };
}

inline RotaryHeads rotary_heads(const Tensor& x, const Tensor& y) {
  return {
      .x = x.data_ptr(),
      .y = y.data_ptr(),
      .x_batch = step(x, 0),
      .x_token = step(x, 1),
      .x_head = step(x, 2),
      .y_batch = step(y, 0),
      .y_token = step(y, 1),
      .y_head = step(y, 2),
      .heads = static_cast<int>(x.size(2)),
  };
}

}  // namespace warpsmith
