// The gradients of normalised and turned queries and keys: of both, and of the weights of their norms.
#pragma once

#include "host/ceil_div.h"
#include "host/min_max.h"
#include "transform/qk_norm_rope/qk_norm_rope.h"

namespace warpsmith {

struct QkNormRopeBackwardArgs {
  QkNormRopeArgs forward;       // its outputs are dq and dk
  RotaryHeads q_grad, k_grad;   // as inputs: the gradients of what the forward pass wrote
  void *dq_weight, *dk_weight;  // [d], of the dtype of the weights
  float* partial;               // [rows, d]: what blocks leave of both
};

// Rows of `partial` that are there: a share for each block.
inline constexpr int64_t kPartialRows = 512;

inline int64_t partial_rows(int64_t heads) { return std::max(kPartialRows, heads); }

// How many blocks go through the tokens side by side, where there are `chunks` of heads.
inline int64_t blocks_of_tokens(int64_t token_groups, int64_t chunks) {
  return std::max<int64_t>(1, std::min(token_groups, kPartialRows / chunks));
}

// Adds up the first `q_rows` rows of `partial` to dq_weight, and the next `k_rows` to dk_weight. In sum_weights.cu.
void sum_weights(const QkNormRopeBackwardArgs& a, int64_t q_rows, int64_t k_rows, cudaStream_t stream);

}  // namespace warpsmith
