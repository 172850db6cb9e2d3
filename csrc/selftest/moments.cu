// device/moments.h: counts, means and deviations of values that lie far from zero, over lanes and blocks; some threads
// have nothing to add, and every thread must hold the result.
#include "device/moments.h"

#include <utility>

#include "selftest/reductions.h"

namespace warpsmith::selftest {
namespace {

constexpr int kBlocks = 4;
constexpr int kValues = 4;         // of a thread
constexpr float kShift = 1000.0f;  // the deviations are a thousandth of it

struct Results {
  Moments* warp;     // [blocks, threads]
  Moments* block;    // [blocks, threads]
  Moments* running;  // [blocks, threads], of the thread's own values one by one
};

// Every third thread has no values.
__host__ __device__ inline bool has_values(int thread) { return thread % 3 != 1; }

template <int lanes>
__global__ void moments_kernel(Results to, const float* from) {
  __shared__ Moments partial[kWarp];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float values[kValues];
#pragma unroll
  for (int k = 0; k < kValues; ++k) values[k] = from[i * kValues + k];
  const Moments own = has_values(threadIdx.x) ? moments_of(values) : Moments{};
  to.warp[i] = warp_merge<lanes>(own);
  to.block[i] = block_merge(own, partial);
  float mean = 0.0f, m2 = 0.0f;
#pragma unroll
  for (int k = 0; k < kValues; ++k) add_value(mean, m2, values[k], 1.0f / (k + 1));
  to.running[i] = {kValues, mean, m2};
}

// Of groups of threads, in double, one triple of floats for each thread.
std::vector<float> expect(const std::vector<float>& values, int threads, int group, bool all) {
  std::vector<float> expected(values.size() / kValues * 3);
  for (size_t start = 0; start < values.size() / kValues; start += group) {
    double count = 0, sum = 0, square = 0;
    const auto visit = [&](auto body) {
      for (size_t i = start; i < start + group; ++i) {
        if (!all && !has_values(static_cast<int>(i % threads))) continue;
        for (int k = 0; k < kValues; ++k) body(static_cast<double>(values[i * kValues + k]));
      }
    };
    visit([&](double value) {
      count += 1;
      sum += value;
    });
    const double mean = count > 0 ? sum / count : 0;
    visit([&](double value) { square += (value - mean) * (value - mean); });
    for (size_t i = start; i < start + group; ++i) {
      expected[3 * i] = static_cast<float>(count);
      expected[3 * i + 1] = static_cast<float>(mean);
      expected[3 * i + 2] = static_cast<float>(square);
    }
  }
  return expected;
}

// One of the three floats of every thread.
std::vector<float> field(const std::vector<float>& triples, size_t which) {
  std::vector<float> values(triples.size() / 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = triples[3 * i + which];
  return values;
}

std::string compare_moments(const std::string& title, const std::vector<float>& expected,
                            const std::vector<float>& got) {
  // The rounding of a mean near kShift, and what it leaves of the squares of deviations below 1.
  const auto near = [](float a, float b) { return std::fabs(a - b) <= 4 * 0x1p-24f * kShift; };
  const auto close = [](float a, float b) { return std::fabs(a - b) <= 0x1p-10f * (std::fabs(a) + 1.0f); };
  const auto describe = [](size_t i) { return text("thread ", i); };
  return first_failure([&] { return compare(title + ": count", field(expected, 0), field(got, 0), describe); },
                       [&] { return compare(title + ": mean", field(expected, 1), field(got, 1), describe, near); },
                       [&] { return compare(title + ": m2", field(expected, 2), field(got, 2), describe, close); });
}

template <int lanes>
std::string check(int threads) {
  const size_t count = static_cast<size_t>(kBlocks) * threads;
  std::vector<float> values = fractions(count * kValues);
  for (float& value : values) value += kShift;
  DeviceArray<float> from(values), warp(3 * count), block(3 * count), running(3 * count);
  const Results results{reinterpret_cast<Moments*>(warp.data()), reinterpret_cast<Moments*>(block.data()),
                        reinterpret_cast<Moments*>(running.data())};
  warpsmith::launch<&moments_kernel<lanes>>({kBlocks, static_cast<unsigned>(threads)}, kStream, results,
                                            static_cast<const float*>(from.data()));
  const std::string title = text(" in blocks of ", threads);
  return first_failure(
      [&] {
        return compare_moments(text("warp_merge<", lanes, ">", title), expect(values, threads, lanes, false),
                               warp.values());
      },
      [&] { return compare_moments("block_merge" + title, expect(values, threads, threads, false), block.values()); },
      [&] { return check_agreement("block_merge" + title, field(block.values(), 1), threads); },
      [&] { return check_agreement("block_merge" + title, field(block.values(), 2), threads); },
      [&] { return compare_moments("add_value" + title, expect(values, threads, 1, true), running.values()); });
}

std::string run() {
  for (const int threads : {32, 96, 256, 1024}) {
    const std::string failure = first_failure([&] { return check<1>(threads); }, [&] { return check<4>(threads); },
                                              [&] { return check<16>(threads); }, [&] { return check<32>(threads); });
    if (!failure.empty()) return failure;
  }
  return "";
}

const SelfTestEntry entered{"moments", run};

}  // namespace
}  // namespace warpsmith::selftest
