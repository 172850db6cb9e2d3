// Softmax, rows that begin anywhere streamed through a block or a cluster.
//   Against `shared`: rows are read ahead while the one before is finished, may be as long as eight multiprocessors hold, and
//   all that lies between 16-byte borders is read and written in packs. Bound: DRAM.
#include "row/stream.cuh"
#include "softmax/softmax/resident.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_answers(a, [&]<class T, class Answer>() { launch_stream(Softmax<T, Answer>(a), stream, StreamTiles{}); });
}

const char* takes(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostStreamBytes ? nullptr : "needs rows of at most 1 MiB";
}

// Of shorter rows `shared` has so many on a multiprocessor that they hide each other's waits as well.
bool suits(const SoftmaxArgs& a) { return a.cols * size_of(a.dtype) > 32 * 1024; }

const Register<SoftmaxArgs> registered{"peeled", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
