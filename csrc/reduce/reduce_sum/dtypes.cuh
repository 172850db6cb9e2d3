// From a call to the element and accumulator types of a kernel, for the rungs that take every dtype.
#pragma once

#include "host/registry.h"
#include "reduce/reduce_sum/reduce_sum.h"
#include "reduce/span.cuh"
#include "reduce/thread_sum.cuh"

namespace warpsmith {

// Calls body.template operator()<T>() for the element type.
template <class Body>
void visit_elements(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::i8:
      return body.template operator()<int8_t>();
    case Dtype::i32:
      return body.template operator()<int32_t>();
    default:
      dispatch_floating(dtype, body);
  }
}

// Calls body.template operator()<T, A>() for the element and the accumulator.
template <class Body>
void visit_accumulators(const ReduceSumArgs& a, Body&& body) {
  visit_elements(a.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, f16> || kIsFp8<T>) {
      if (a.accumulator == Accumulator::f16) return body.template operator()<T, f16>();
    } else if constexpr (std::is_same_v<T, bf16>) {
      if (a.accumulator == Accumulator::bf16) return body.template operator()<T, bf16>();
    }
    body.template operator()<T, Wide<T>>();
  });
}

}  // namespace warpsmith
