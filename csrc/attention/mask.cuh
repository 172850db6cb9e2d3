// Which keys a query sees.
//
// A Mask is made once a block, for one head of a sequence. Every mask has a range of keys, which grows with the query's
// number and by which whole tiles are skipped; `mask(query, key)` says whether a pair that exists (query < m, key < n) is
// seen. `beyond_range()`, the same for a whole grid, says whether that may be less than the range.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/sequence.cuh"

namespace warpsmith {

// Causal, a window, or everything.
struct RangeMask {
  int n, shift;     // keys; of a query's number to its place
  int left, right;  // keys before and past the place

  __device__ __forceinline__ RangeMask(const AttentionArgs& a, const Sequence& s, int)
      : n(s.n), shift(s.n - s.m), left(a.left), right(a.right) {}

  // The keys from first to before end; none where end <= first.
  __device__ __forceinline__ int first(int query) const {
    const int key = query + shift - left;
    return key > 0 ? key : 0;
  }
  __device__ __forceinline__ int end(int query) const {
    const int past = query + shift + 1 + right;
    return past < n ? past : n;
  }

  __device__ __forceinline__ static bool beyond_range() { return false; }
  __device__ __forceinline__ bool operator()(int query, int key) const {
    return key >= query + shift - left && key <= query + shift + right;
  }
};

// Everything that a call may ask for.
struct OptionMask : RangeMask {
  const uint8_t* mask;  // of the head
  int64_t mask_query, mask_key;
  const int32_t *q_documents, *k_documents;  // of the sequence
  const int64_t* tree;

  __device__ __forceinline__ OptionMask(const AttentionArgs& a, const Sequence& s, int head)
      : RangeMask(a, s, head),
        mask(nullptr),
        mask_query(a.mask.mask_query),
        mask_key(a.mask.mask_key),
        q_documents(nullptr),
        k_documents(nullptr),
        tree(nullptr) {
    const MaskOptions& m = a.mask;
    if (m.mask != nullptr) mask = m.mask + s.batch * m.mask_batch + head * m.mask_head;
    if (m.q_documents != nullptr) {
      q_documents = m.q_documents + int64_t{s.batch} * a.m;
      k_documents = m.k_documents + int64_t{s.batch} * a.n;
    }
    if (m.tree != nullptr) tree = m.tree + int64_t{s.batch} * a.m;
  }

  __device__ __forceinline__ bool beyond_range() const {
    return mask != nullptr || q_documents != nullptr || tree != nullptr;
  }

  __device__ __forceinline__ bool operator()(int query, int key) const {
    bool seen = RangeMask::operator()(query, key);
    if (mask != nullptr) seen = seen && mask[query * mask_query + key * mask_key] != 0;
    if (q_documents != nullptr) seen = seen && q_documents[query] == k_documents[key];
    if (tree != nullptr) {
      const int drafted = key - shift;  // among the last m keys; the tree says nothing of those before
      seen = seen && (drafted < 0 || (static_cast<uint64_t>(tree[query]) >> (drafted & 63) & 1) != 0);
    }
    return seen;
  }
};

}  // namespace warpsmith
