// Residual norm into fp8, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length, in chunks that make room for the next at once, as `cluster`
//   of add_norm has it. Bound: DRAM.
#include "norm/add_norm/cluster.cuh"
#include "norm/add_norm_fp8/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args& a) { return needs_cluster(a); }

// Without a residual too few bytes are on their way.
bool suits(const AddNormFp8Args& a) { return suits_cluster(a) && a.residual != nullptr; }

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  visit_add_norm_fp8(a, [&]<class Types>() { launch_cluster(AddNormFp8Rows<Types>(a), stream); });
}

const Register<AddNormFp8Args> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
