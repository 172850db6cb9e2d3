// RMS norm, two 16-bit values an access.
//   Against `shuffle`: half of the loads and stores, and a 16-bit accumulator adds two squares an instruction.
//   Bound: still the number of memory instructions, at 4 bytes each.
#include "norm/forward/sweeps.cuh"

namespace warpsmith {
namespace {

const char* takes(const RmsNormArgs& a) { return a.dtype == Dtype::f32 ? "takes f16 and bf16" : needs_pairs(a); }

const Register<RmsNormArgs> registered{"x2", /*min_sm=*/80, takes, launch_pairs<OfX, RmsNormArgs>, suits_y_alone};

}  // namespace
}  // namespace warpsmith
