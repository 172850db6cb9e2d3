// Rows added up by their indices, a value a thread, which looks through all indices before and behind its own.
//   Bound: the indices, which each thread reads.
#include "transform/accumulate/runs.cuh"

namespace warpsmith {
namespace {

constexpr int kMinBlocks = 6;

template <class T>
__global__ void __launch_bounds__(kRunThreads, kMinBlocks) accumulate_naive_kernel(const AccumulateArgs a) {
  const int64_t j = blockIdx.x, row = row_of(a, read_index(a.index, j, a.wide));
  if (row < 0) return;
  for (int64_t i = 0; i < j; ++i) {
    if (row_of(a, read_index(a.index, i, a.wide)) == row) return;  // an earlier block has the row
  }
  int64_t terms = 0, last = j;
  for (int64_t i = j; i < a.count; ++i) {
    if (row_of(a, read_index(a.index, i, a.wide)) != row) continue;
    ++terms;
    last = i;
  }
  for (int64_t outer = blockIdx.z; outer < a.outer; outer += gridDim.z) {
    for (int64_t column = int64_t{blockIdx.y} * kRunThreads + threadIdx.x; column < a.inner;
         column += int64_t{gridDim.y} * kRunThreads) {
      Run<T, 1> run;
      if (is_moved(a, terms)) {
        run.put(a, outer, row, column, run.term(a, outer, last, column));
        continue;
      }
      for (int64_t i = j; i < a.count; ++i) {
        if (row_of(a, read_index(a.index, i, a.wide)) == row) run.add(a, outer, i, column);
      }
      run.write(a, outer, row, column);
    }
  }
}

const char* takes(const AccumulateArgs& a) { return needs_grid_rows(a.count); }

void launch(const AccumulateArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype,
                 [&]<class T>() { warpsmith::launch<&accumulate_naive_kernel<T>>(run_config<1>(a), stream, a); });
}

const Register<AccumulateArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
