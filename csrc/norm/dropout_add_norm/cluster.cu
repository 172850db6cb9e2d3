// Residual norms with dropout, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length, in chunks that make room for the next at once, as `cluster`
//   of add_norm has it. Bound: DRAM and, at 16 bits, the generator.
#include "norm/add_norm/cluster.cuh"
#include "norm/dropout_add_norm/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const DropoutAddNormArgs& a) { return needs_cluster(a); }

bool suits(const DropoutAddNormArgs& a) { return suits_cluster(a); }

void launch(const DropoutAddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_cluster(DropoutAddNormRows<Types>(a), stream); });
}

const Register<DropoutAddNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
