// Which keys a query sees.
//
// A Mask is made for one head of a sequence. Every mask has a range of keys, which grows with the query's number and by
// which whole tiles are skipped. `hide(x, query, key)` makes scores -inf that are not seen, x[i] that of a query, which
// exists, and key(i), which may be n or more. `beyond_range()`, the same for a whole grid, says whether less may be seen
// than the range.
#pragma once

#include <cmath>
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

  template <int count, class Key>
  __device__ __forceinline__ void hide(float (&x)[count], int query, Key key) const {
    // counted from the first, of which the others are a known number of keys away
    const int from = first(query) - key(0), to = end(query) - key(0);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int place = key(i) - key(0);
      if (place < from || place >= to) x[i] = -INFINITY;
    }
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

  // Whatever a call asks for is a loop of its own, around which all threads branch alike.
  template <int count, class Key>
  __device__ __forceinline__ void hide(float (&x)[count], int query, Key key) const {
    RangeMask::hide(x, query, key);
    const auto read = [&](int i) { return min(key(i), n - 1); };
    if (mask != nullptr) {
      const uint8_t* of_query = mask + query * mask_query;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (of_query[read(i) * mask_key] == 0) x[i] = -INFINITY;
      }
    }
    if (q_documents != nullptr) {
      const int32_t own = q_documents[query];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (k_documents[read(i)] != own) x[i] = -INFINITY;
      }
    }
    if (tree != nullptr) {
      const uint64_t word = static_cast<uint64_t>(tree[query]);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int drafted = key(i) - shift;  // among the last m keys; the tree says nothing of those before
        if (drafted >= 0 && (word >> (drafted & 63) & 1) == 0) x[i] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ bool operator()(int query, int key) const {
    float x[] = {0.0f};
    hide(x, query, [key](int) { return key; });
    return x[0] == 0.0f;
  }
};

}  // namespace warpsmith
