// Where the rows of a sequence are, which queries see some of a block's keys, and in which order blocks add to a query's
// gradient.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/flash_attention_backward.h"
#include "attention/sequence.cuh"

namespace warpsmith {

// A sequence, and its rows in the workspace.
struct GradientRows : Sequence {
  int place;             // of query 0, among the keys
  int64_t q_row, k_row;  // of the first query and key

  __device__ __forceinline__ GradientRows(const AttentionBackwardArgs& a, int number)
      : Sequence(a.of, number), place(n - m) {
    const bool apart = a.of.cu_q == nullptr;
    q_row = begin(apart ? int64_t{number} * m : first_q);
    k_row = begin(apart ? int64_t{number} * n : first_k);
  }

  // Row `i` of a head of what has the queries' tokens, or the keys'.
  template <class T>
  __device__ __forceinline__ T* query(const HeadRows& x, int head, int64_t i) const {
    return queries<T>(x, head) + i * x.token;
  }
  template <class T>
  __device__ __forceinline__ T* key(const HeadRows& x, int head, int64_t i) const {
    return static_cast<T*>(x.data) + batch * x.batch + (first_k + i) * x.token + head * x.head;
  }

 private:
  __device__ __forceinline__ int64_t begin(int64_t tokens_before) const {
    return (tokens_before + int64_t{batch} * kRowsApart) / kRowsApart * kRowsApart;
  }
};

// Whether dropout keeps the probability of a query and a key.
__device__ __forceinline__ bool keeps(const AttentionArgs& a, const Sequence& s, int head, int query, int key) {
  const uint64_t line = (static_cast<uint64_t>(s.batch) * a.q_heads + head) * a.m + query;
  return a.dropout.keeps(line * a.n + key);
}

// Blocks of bm queries that see some of a block's keys: from first on, none if count is 0.
struct QueryBlocks {
  int first, count;
};

template <int bm, int bn>
__device__ __forceinline__ QueryBlocks queries_of(const AttentionArgs& a, const GradientRows& s, int key_block) {
  const int64_t key = int64_t{key_block} * bn, end = min(key + bn, int64_t{s.n});
  const int64_t first = max(key - s.place - a.right, int64_t{0});
  const int64_t last = min(end - 1 - s.place + a.left, int64_t{s.m} - 1);
  if (first > last) return {0, 0};
  const int block = static_cast<int>(first / bm);
  return {block, static_cast<int>(last / bm) - block + 1};
}

// How many blocks of keys come before this one to a block of queries, which sees both: those with later keys.
template <int bm, int bn>
__device__ __forceinline__ uint32_t turn_of(const AttentionArgs& a, const GradientRows& s, int query_block,
                                            int key_block) {
  const int64_t last = min(int64_t{query_block} * bm + bm, int64_t{s.m}) - 1;
  const int64_t newest = min(last + s.place + a.right, int64_t{s.n} - 1);
  return static_cast<uint32_t>(static_cast<int>(newest / bn) - key_block);
}

// Whether some of bm queries do not see some of bn keys.
template <int bm, int bn>
__device__ __forceinline__ bool has_edge(const AttentionArgs& a, const GradientRows& s, int query, int key) {
  const int64_t first = int64_t{query} + s.place;
  return key + bn > s.n || key + bn - 1 - first > a.right || first + bm - 1 - key > a.left;
}

}  // namespace warpsmith
