// Which keys and heads a block of the backward kernel takes, and in which order blocks begin.
//
// A block owns keys and adds to the gradients of all queries that see them. So that the sum is always the same, blocks add
// to a tile of dq in the order of their keys, the last ones first, and all go through the queries from the first to the
// last that see them. Under a causal mask a block then begins at its diagonal, where nobody is before it, and those that
// began together stay one tile apart: nobody waits. (From the other end all would begin at the last queries and stand in
// line there.) A block waits for those with later keys of its head, never for one that began later: numbers are drawn
// from a counter as blocks begin, and keys of all heads at hand come before the next keys of the first.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/flash_attention_backward.h"
#include "host/min_max.h"

namespace warpsmith {

struct Schedule {
  int splits;   // of a group's query heads
  int heads;    // of a block
  int blocks;   // of keys
  int at_hand;  // parts of groups whose blocks take turns
  int parts;    // batch * kv_heads * splits

  struct Place {
    int batch, kv_head, split, block;
  };

#ifdef __CUDACC__
  __device__ __forceinline__ Place place(int kv_heads, uint32_t number) const {
    const uint32_t section = number / static_cast<uint32_t>(at_hand * blocks);
    const uint32_t first = section * at_hand, inside = number - first * blocks;
    const uint32_t width = min(static_cast<uint32_t>(at_hand), parts - first);
    const uint32_t block = blocks - 1 - inside / width, part = first + inside % width, group = part / splits;
    return {static_cast<int>(group / kv_heads), static_cast<int>(group % kv_heads), static_cast<int>(part % splits),
            static_cast<int>(block)};
  }
#endif
};

// Queries, their gradients and the sums of dq of the heads at hand should stay in L2.
inline constexpr int64_t kBytesAtHand = 24 << 20;

inline Schedule schedule_of(const AttentionBackwardArgs& a, int keys) {
  const AttentionArgs& of = a.of;
  Schedule s{};
  s.splits = head_splits(a, keys);
  s.heads = of.q_heads / of.kv_heads / s.splits;
  s.blocks = static_cast<int>(ceil_div(of.n, keys));
  s.parts = of.batch * of.kv_heads * s.splits;
  const int64_t part = int64_t{s.heads} * std::max(of.m, 1) * (int64_t{of.d} * (4 + 2) + of.dv * 2);
  s.at_hand = static_cast<int>(clamp<int64_t>(kBytesAtHand / part, 1, s.parts));
  return s;
}

}  // namespace warpsmith
