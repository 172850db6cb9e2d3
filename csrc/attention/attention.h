// Attention: out = softmax(score(q k^T)) v for each head, and what the kernels of the family are told of a call.
//
// Query i of a sequence with m queries and n keys stands at key i + n - m: the last query at the last key.
#pragma once

#include <cstdint>

#include "device/philox.h"
#include "host/dtype.h"

namespace warpsmith {

// Rows of heads [batch, tokens, heads, d]; d has unit stride, the others are in elements. Of sequences that lie one behind
// the other, [tokens, heads, d], `batch` is 0.
struct HeadRows {
  void* data;
  int64_t batch, token, head;
};

// What a score may be made of beyond scale * q k. One instance of a kernel has them all, each a branch that a whole grid
// takes alike; null or 0 where it is not wanted.
struct ScoreOptions {
  float softcap;         // cap: scores become cap * tanh(score / cap), before what follows is added
  const float* slopes;   // [batch, heads]: -slope * |key - place of the query|
  int64_t slopes_batch;  // stride; 0 where all sequences share them
  const void* bias;      // [batch, heads, m, n] of q's dtype, any strides
  int64_t bias_batch, bias_head, bias_query, bias_key;
};

// What a query sees. Keys from left behind its place to right past it, in every instance; the rest as above.
struct MaskOptions {
  const uint8_t* mask;  // [batch, heads, m, n] of bools, any strides: true is seen
  int64_t mask_batch, mask_head, mask_query, mask_key;
  const int32_t* q_documents;  // [batch, m]: a query sees the keys of its own document
  const int32_t* k_documents;  // [batch, n]
  const int64_t* tree;         // [batch, m], m <= 64: of the last m keys, query i sees those whose bit is set in word i
};

// What bindings leave as it lies: of more, a copy is made, so that kernels may count the bytes of a tile in 32 bits.
inline constexpr int64_t kMostTokenStride = 1 << 22;

inline constexpr int kUnlimited = 1 << 30;  // of a window's side

struct AttentionArgs {
  HeadRows q, k, v;   // [batch, m, q_heads, d], [batch, n, kv_heads, d], [batch, n, kv_heads, dv]
  HeadRows out;       // [batch, m, q_heads, dv]
  float* lse;         // [batch, q_heads, m], or [q_heads, all queries]: natural logarithm of the sum of exp; or null
  int64_t lse_batch;  // strides; of sequences that lie one behind the other, the batch's is 0
  int64_t lse_head;
  float* max_logits;           // [q_heads], -inf before the launch: the largest score that anything sees; or null
  const int32_t* cu_q;         // [batch + 1]: where sequences begin in q and out; null where all have m queries
  const int32_t* cu_k;         // of k and v
  int64_t q_tokens, k_tokens;  // where sequences lie one behind the other, of all of them: none reaches beyond
  int batch, q_heads, kv_heads;
  int m, n;  // tokens of a sequence, or the most of any
  int d, dv;
  float scale, scale_log2;  // the second times log2(e), for exp2
  int left, right;          // of the window; kUnlimited where it has no such side
  ScoreOptions score;
  MaskOptions mask;
  const float* sinks;  // [q_heads]: a logit that takes its share of the sum and has no value; or null
  void* workspace;     // of the rungs that flash_attention/workspace.h names, and of few_queries; else null
  HeadRows gate;       // like out: out is multiplied by sigmoid(gate); data is null where there is none
  Dropout dropout;     // of the probabilities, element ((batch * q_heads + head) * m + query) * n + key
  Dtype dtype;         // of q, k, v, out, bias and gate
  Dtype accumulator;   // of q k and p v: f32, or by name f16
  bool has_options;    // anything beyond the window
  bool deterministic;
  bool batch_invariant;
};

}  // namespace warpsmith
