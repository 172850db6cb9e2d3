// Rotary positions: by which angle each pair of values of a token turns, from tables of cosines and sines or from the
// turns of a position.
#pragma once

#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

// Cosines or sines, [rows, pairs], or [batch, tokens, pairs] with a row for each token.
struct RotaryTable {
  const void* data;
  int64_t batch, row;  // strides
};

struct RotaryAngles {
  RotaryTable cos, sin;   // null: from `turns`
  const int64_t* turns;   // [pairs]: of a position, in 2^-64 of a turn
  const int32_t* axes;    // [pairs]: which of several positions a pair has; null: there is one
  const void* positions;  // [axes, batch, tokens]; null: a token's number in its sequence
  int64_t position_axis, position_batch, position_token;
  int64_t rows;       // that tables have by position; 0: they have a row for each token
  int axis_count;     // of positions
  int pairs;          // that turn
  float factor;       // of cosines and sines made from turns
  bool interleaved;   // pair i is values 2i and 2i + 1, instead of i and i + pairs
  bool inverse;       // the other way round
  bool wide;          // positions have 64 bits
  Dtype table_dtype;  // f32, or that of the heads
};

// Heads of every token, each at unit stride, as they lie before and after.
struct RotaryHeads {
  const void* x;  // [batch, tokens, heads, d]
  void* y;
  int64_t x_batch, x_token, x_head, y_batch, y_token, y_head;
  int heads;
};

}  // namespace warpsmith
