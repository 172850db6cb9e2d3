// Scaled product of 8-bit matrices, a thread per element.
//   Neighbouring threads compute neighbouring columns. Runs of products are added in f32, their sums in f64, as one
//   thread's long sum would drift. Any layout and alignment. Bound: load instructions, two for each multiplication.
#include "gemm/elements.cuh"
#include "gemm/scaled_matmul/result.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 64;  // divides a block of scales

template <class QA, class QB, class Out>
__global__ void __launch_bounds__(kThreads) scaled_matmul_naive_kernel(const ScaledMatmulArgs p) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= p.m * p.n) return;
  const int64_t col = index % p.n, row = index / p.n;
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int64_t a_step = a_rows ? 1 : p.a.ld, b_step = b_rows ? p.b.ld : 1;
  const QA* a = static_cast<const QA*>(p.a.data) + (a_rows ? row * p.a.ld : row);  // [k]
  const QB* b = static_cast<const QB*>(p.b.data) + (b_rows ? col : col * p.b.ld);  // [k]
  const float* scale_a = p.scale_a.data + row * p.scale_a.step;
  const float* scale_b = p.scale_b.data + (p.blocks ? col / kScaleBlock : col) * p.scale_b.step;

  double total = 0.0, of_block = 0.0;
  for (int64_t start = 0; start < p.k; start += kRun) {
    const int64_t end = start + kRun < p.k ? start + kRun : p.k, block = start / kScaleBlock;
    float sum = 0.0f;
    for (int64_t k = start; k < end; ++k) sum = fmaf(value_of(a[k * a_step]), value_of(b[k * b_step]), sum);
    of_block += sum;
    if (end < p.k && end % kScaleBlock != 0) continue;
    // once for a block: of runs that differ in sign, an infinite scale would leave no number
    total += p.blocks ? of_block * (scale_a[block * p.scale_a.step_k] * scale_b[block * p.scale_b.step_k]) : of_block;
    of_block = 0.0;
  }
  const float scale = p.blocks ? 1.0f : *scale_a * *scale_b;
  Vec<Out, 1> result;
  round_result(result, {static_cast<float>(total) * scale}, p);
  static_cast<Out*>(p.d)[index] = result[0];
}

const char* takes(const ScaledMatmulArgs&) { return nullptr; }

bool suits(const ScaledMatmulArgs& p) {
  constexpr int64_t kMostProducts = 1 << 24;
  return p.m * p.n <= kMostProducts / p.k;
}

void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  const LaunchConfig config{static_cast<unsigned>(ceil_div(p.m * p.n, kThreads)), kThreads};
  dispatch_out(p.out, [&]<class Out>() {
    const auto run = [&]<class QA, class QB>() {
      warpsmith::launch<&scaled_matmul_naive_kernel<QA, QB, Out>>(config, stream, p);
    };
    p.dtype == Dtype::i8 ? run.template operator()<int8_t, int8_t>() : dispatch_formats(p, run);
  });
}

const Register<ScaledMatmulArgs> registered{"naive", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
