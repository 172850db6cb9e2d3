// What a variant's name says beyond the dtype: which rung runs, and what it adds up in.
#pragma once

#include <string>
#include <string_view>

#include "host/dtype.h"
#include "host/tensor.h"

namespace warpsmith {

// A binding without one leaves both to the ladder.
struct Named {
  std::string rung, accumulator;
};

// Of operators that add up in f32, or by name in f16 what is f16.
inline Dtype accumulator_of(std::string_view op, const Named& named, Dtype dtype) {
  if (named.accumulator == "f32") return Dtype::f32;
  if (named.accumulator == "f16" && dtype == Dtype::f16) return Dtype::f16;
  fail(op, "no accumulator '", named.accumulator, "' for ", name_of(dtype));
}

}  // namespace warpsmith
