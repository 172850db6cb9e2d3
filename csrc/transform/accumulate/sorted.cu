// Rows added up by their indices, which are sorted: those of a row follow each other.
//   Against `scan`: a block asks one neighbour whether it is the first of its row, and goes on while the next one is of the
//   same. The sort is stable, so that the order is that of the indices, and the last term of a row, which replaces it,
//   stands last. Bound: the sort, and one row that many name: a block adds it up alone.
#include "transform/accumulate/runs.cuh"

namespace warpsmith {
namespace {

constexpr int kMinBlocks = 8;

template <class T, int width>
__global__ void __launch_bounds__(kRunThreads, kMinBlocks) accumulate_sorted_kernel(const AccumulateArgs a) {
  const int64_t first = blockIdx.x, key = read_index(a.keys, first, a.wide);
  const bool goes_on = first + 1 < a.count && read_index(a.keys, first + 1, a.wide) == key;
  const bool begins = first == 0 || read_index(a.keys, first - 1, a.wide) != key;
  if (a.replaces ? goes_on : !begins) return;
  const int64_t row = row_of(a, key);
  if (row < 0) return;
  const bool moved = is_moved(a, goes_on ? 2 : 1);
  for (int64_t outer = blockIdx.z; outer < a.outer; outer += gridDim.z) {
    for (int64_t column = (int64_t{blockIdx.y} * kRunThreads + threadIdx.x) * width; column < a.inner;
         column += int64_t{gridDim.y} * kRunThreads * width) {
      Run<T, width> run;
      if (moved) {
        run.put(a, outer, row, column, run.term(a, outer, a.order[first], column));
        continue;
      }
      for (int64_t i = first; i < a.count && read_index(a.keys, i, a.wide) == key; ++i)
        run.add(a, outer, a.order[i], column);
      run.write(a, outer, row, column);
    }
  }
}

const char* takes(const AccumulateArgs& a) { return needs_grid_rows(a.count); }

bool suits(const AccumulateArgs& a) { return a.count > kMostScanned; }

void launch(const AccumulateArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (runs_in_packs(a)) {
      constexpr int kWidth = kPack<T>;
      warpsmith::launch<&accumulate_sorted_kernel<T, kWidth>>(run_config<kWidth>(a), stream, a);
    } else {
      warpsmith::launch<&accumulate_sorted_kernel<T, 1>>(run_config<1>(a), stream, a);
    }
  });
}

const Register<AccumulateArgs> registered{"sorted", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
