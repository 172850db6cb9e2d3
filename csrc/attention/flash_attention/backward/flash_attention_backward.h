// Gradients of attention, and what its kernels are told of a call.
//
// With s the scores, o the answer before its gate, go its gradient and gl that of the log-sum-exp:
//   p = exp(s - lse)   dv = p^T go   dp = go v^T   D = sum(go o) - gl   ds = p (dp - D)
//   dq = scale ds k    dk = scale ds^T q     dbias = ds     dslope = -sum(|key - place| ds)     dsink = -sum(p_sink D)
// Behind a soft cap, ds passes through the slope of tanh on its way to q and k. Dropout scales and drops p and dp alike.
// A gate's sigmoid g multiplies the gradient, go = g dout; sum(go o) = sum(dout out), so o itself is not needed, and
// dgate = dout out (1 - g).
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

// Rows of queries and keys that belong together in the workspace; tiles divide it.
inline constexpr int kRowsApart = 128;
// Blocks of rows of which sums over queries are kept, before a last kernel adds them up.
inline constexpr int kQueriesOfSum = 64;

// The gradient of a bias, [batch, heads, m, n] and contiguous; an extent is 1 where the bias is broadcast.
struct BiasGradient {
  void* data;
  int batch, heads, m, n;
};

struct AttentionBackwardArgs {
  AttentionArgs of;        // the call whose gradients these are; its out and lse are read
  HeadRows grad;           // of out, and like it
  const float* grad_lse;   // like lse, and strided alike; or null
  HeadRows dq, dk, dv;     // like q, k, v
  HeadRows dgate;          // like out; data is null where there is no gate
  BiasGradient dbias;      // data is null where nobody asks
  float* dslopes;          // like slopes, or null
  float* dsinks;           // [q_heads], or null
  int64_t q_rows, k_rows;  // of one head in the workspace: workspace_rows()
  int sm, sm_count;        // of the GPU
  char* workspace;         // workspace_of() says what is where
};

// Sequences have their rows in the workspace at multiples of kRowsApart, and room up to the next one.
inline int64_t workspace_rows(int64_t tokens, int batch) {
  return ceil_div(tokens + int64_t{batch} * kRowsApart, kRowsApart) * kRowsApart;
}

// The width of the tiles that a head dimension gets in tensor-core kernels.
constexpr int tile_width(int d) {
  for (const int width : {64, 96, 128, 192, 256}) {
    if (d <= width) return width;
  }
  return static_cast<int>(ceil_div(d, 64) * 64);
}

// Into how many parts the query heads of a group are cut, each with a block of its own for the same keys: enough for the
// GPU, but a batch's size must not show in the sums where that is asked for.
inline int head_splits(const AttentionBackwardArgs& a, int keys) {
  const int group = a.of.q_heads / std::max(a.of.kv_heads, 1);
  if (a.of.batch_invariant || group == 1) return 1;
  const int64_t blocks = int64_t{a.of.batch} * a.of.kv_heads * ceil_div(a.of.n, keys);
  int splits = 1;
  while (splits < group && (blocks * splits < 2 * a.sm_count || group % splits != 0)) ++splits;
  return splits;
}

// What kernels leave for each other.
struct BackwardWorkspace {
  float* lse2;  // [q_heads, q_rows]: lse in powers of 2, infinite past the end of a sequence and where nothing is seen
  float* dots;  // [q_heads, q_rows]: D, 0 past the end
  float* slope_sums;  // [q_heads, k_rows]: of one key, or of blocks of keys one behind the other
  float* sink_sums;   // [q_heads, q_rows / kQueriesOfSum]
  void* grad;         // [queries, q_heads, dv]: go, where there is a gate
  uint32_t* turns;    // [q_heads, q_rows / 32]: how many blocks have added to a tile of dq; one more counts blocks
  int64_t turn_count;
  float* dq;  // [q_heads, q_rows, width], of each tile in the order of a block's registers
  int dq_width;
  float* dk_dv;  // [splits, kv_heads, k_rows, width + v_width], likewise
  int64_t bytes;
};

struct WorkspaceNeeds {
  bool sums;                   // of dq, and turns
  int splits = 1;              // of a group's heads
  int width = 0, v_width = 0;  // of tiles
};

inline BackwardWorkspace workspace_of(const AttentionBackwardArgs& a, const WorkspaceNeeds& needs) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    char* from = a.workspace + at;
    at += ceil_div(bytes, 256) * 256;
    return bytes == 0 ? nullptr : from;
  };
  const int64_t rows = a.of.q_heads * a.q_rows;
  const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(4 * count)); };
  BackwardWorkspace w{};
  w.lse2 = floats(rows);
  w.dots = floats(rows);
  w.slope_sums = floats(a.dslopes != nullptr ? a.of.q_heads * a.k_rows : 0);
  w.sink_sums = floats(a.dsinks != nullptr ? rows / kQueriesOfSum : 0);
  w.grad = take(a.dgate.data != nullptr ? a.q_rows * a.of.q_heads * a.of.dv * size_of(a.of.dtype) : 0);
  w.turn_count = needs.sums ? rows / 32 + 1 : 0;
  w.turns = reinterpret_cast<uint32_t*>(take(4 * w.turn_count));
  w.dq = floats(needs.sums ? rows * needs.width : 0);
  w.dq_width = needs.width;
  const int64_t widths = needs.width + needs.v_width;
  w.dk_dv = floats(needs.splits > 1 ? needs.splits * a.of.kv_heads * a.k_rows * widths : 0);
  w.bytes = at;
  return w;
}

// Enough for every rung.
inline WorkspaceNeeds most_needs(const AttentionBackwardArgs& a) {
  const int width = tile_width(std::max(a.of.d, a.of.dv));
  if (width > 256 || a.of.dtype == Dtype::f32) return {.sums = false};
  return {.sums = true, .splits = head_splits(a, kRowsApart), .width = width, .v_width = width};
}

// Every rung has at most a block for a few rows of a head.
inline const char* needs_rows_in_grid(const AttentionBackwardArgs& a) {
  const int64_t rows = (int64_t{a.of.m} + a.of.n + 2 * kRowsApart) * a.of.q_heads * a.of.batch;
  const BiasGradient& b = a.dbias;
  const int64_t biases = b.data == nullptr ? 0 : int64_t{b.batch} * b.heads * b.m * b.n / 64;
  return std::max(rows / 4, biases) < int64_t{1} << 31 ? nullptr : "needs fewer rows and heads";
}

}  // namespace warpsmith
