// Residual norm into fp8, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length, in chunks that make room for the next at once, as `cluster`
//   of add_norm has it. Bound: DRAM.
#include "norm/forward/chunks.cuh"

namespace warpsmith {
namespace {

// Without a residual too few bytes are on their way.
bool suits(const AddNormFp8Args& a) { return suits_sum_chunks(a) && a.residual != nullptr; }

const Register<AddNormFp8Args> registered{
    "cluster", /*min_sm=*/90,    needs_sum_chunks<AddNormFp8Args>, launch_norm_chunks<OfSumToFp8, AddNormFp8Args>,
    suits,     /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
