// One sequence of a call, as a block sees it.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace warpsmith {

struct Sequence {
  int batch, m, n;           // its number, its queries and keys
  int64_t first_q, first_k;  // rows before its own, where sequences lie one behind the other

  __device__ __forceinline__ Sequence(const AttentionArgs& a, int number)
      : batch(number), m(a.m), n(a.n), first_q(0), first_k(0) {
    if (a.cu_q == nullptr) return;
    cut(first_q, m, a.cu_q, a.q_tokens);
    cut(first_k, n, a.cu_k, a.k_tokens);
  }

  // The first of the sequence's rows, in one head.
  template <class T>
  __device__ __forceinline__ T* queries(const HeadRows& x, int head) const {
    return static_cast<T*>(x.data) + batch * x.batch + first_q * x.token + head * x.head;
  }
  template <class T>
  __device__ __forceinline__ const T* keys(const HeadRows& x, int head) const {
    return static_cast<const T*>(x.data) + batch * x.batch + first_k * x.token + head * x.head;
  }

  // Where the LSE of the sequence's first query is, in one head.
  __device__ __forceinline__ float* lse(const AttentionArgs& a, int head) const {
    return a.lse + batch * a.lse_batch + head * a.lse_head + first_q;
  }

 private:
  // `count` is the most that the call names: beyond, options have no entries. Starts that make no sense end at the tensor.
  __device__ __forceinline__ void cut(int64_t& first, int& count, const int32_t* starts, int64_t tokens) const {
    first = starts[batch] < 0 ? 0 : starts[batch];
    const int64_t end = starts[batch + 1] < tokens ? starts[batch + 1] : tokens, own = end > first ? end - first : 0;
    if (own < count) count = static_cast<int>(own);
  }
};

// The largest of what blocks bring, whichever comes first; NaN stays. Bits of floats are in the order of their values, but
// for the sign's: of negative ones the other way round.
__device__ __forceinline__ void atomic_max(float* most, float value) {
  if (value != value) {
    atomicMax(reinterpret_cast<int*>(most), 0x7fffffff);
  } else if (value >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(most), __float_as_int(value + 0.0f));  // -0 is 0
  } else {
    atomicMin(reinterpret_cast<unsigned*>(most), __float_as_uint(value));
  }
}

}  // namespace warpsmith
